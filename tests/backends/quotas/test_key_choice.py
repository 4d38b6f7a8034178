"""A thousand keys of one backend: each has its turn, a choice looks at few, and none that may be asked is missed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from backends.errors import UpstreamExhausted
from backends.protocol import Headers
from backends.quotas.build import build_keys
from backends.quotas.settings import ApiKeyConfig
from backends.quotas.upstream_keys import UpstreamKeys
from tests.support.calls import make_call
from tests.support.policy.pool import StoppedClock

MOST_CALLS = 1000
"""Functions that a choice may call; to look at a thousand keys it took ten thousand."""


def keys_of(number: int, **quota: Any) -> UpstreamKeys:
    """So many keys, each with that quota."""
    environ = {f"K{each}": f"sk-{each}" for each in range(number)}
    given = [
        ApiKeyConfig.model_validate({"key": f"env:{name}", **quota}, context={"environ": environ}) for name in environ
    ]
    return build_keys("up", given, None, lambda _: [], StoppedClock(), has_choice=True, shares_objects=False)


def told(left: int) -> Headers:
    """So much is left of a hundred."""
    return [(b"x-ratelimit-limit-requests", b"100"), (b"x-ratelimit-remaining-requests", b"%d" % left)]


def num_calls(run: Callable[[], object]) -> int:
    """How many functions are called, of Python and in C: the same on every machine, however busy."""
    number = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(before)
    return number


def test_a_thousand_keys_take_turns_and_one_with_little_left_waits_for_its() -> None:
    """Nothing is known of them at first; later half of them have a tenth left."""
    keys = keys_of(1000)
    call = make_call("x")
    first = Counter(keys.reserve(call, "m").key.name for _ in range(3000))
    for number, key in enumerate(keys.all):
        keys.note(key, "m", told(10 if number % 2 else 100))
    later = Counter(int(keys.reserve(call, "m").key.name) % 2 for _ in range(3000))

    assert len(first) == 1000
    assert max(first.values()) <= 4
    assert later[1] >= 2990


@pytest.mark.parametrize("words", ["x", "x" * 6000], ids=["short", "sticky"])
@pytest.mark.parametrize("quota", [{}, {"rpm": 10**6, "tpm": 10**9}], ids=["told", "declared"])
def test_a_choice_among_a_thousand_looks_at_few(words: str, quota: dict[str, int]) -> None:
    """Whatever is known of them."""
    keys = keys_of(1000, **quota)
    call = make_call(words)
    for key in keys.all:
        keys.note(key, "m", told(50))

    assert num_calls(lambda: keys.reserve(call, "m")) <= MOST_CALLS


def test_those_that_may_be_asked_are_found_among_a_thousand_that_may_not() -> None:
    """And where none may, the wait is that of the one that may first; who asks at once again costs next to nothing."""
    keys = keys_of(1000)
    call = make_call("x")
    now = StoppedClock().now()
    for number, key in enumerate(keys.all):
        if number not in (700, 703):
            key.exhaust("m", 60.0 - number / 100, now)
    found = Counter(keys.reserve(call, "m").key.name for _ in range(200))
    for number in (700, 703):
        keys.all[number].reject(now)
    with pytest.raises(UpstreamExhausted) as caught:
        keys.reserve(call, "m")

    assert set(found) == {"701", "704"}
    assert caught.value.retry_after_s == pytest.approx(60.0 - 9.99)
    assert num_calls(lambda: keys.room_in_s(call, "m")) <= 50


def test_a_key_that_is_settled_in_between_is_found_by_another_model_or_a_smaller_call() -> None:
    """What was seen for one call says nothing of others."""
    keys = keys_of(100, tpm=60_000)
    large, small = make_call("x" * 20_000), make_call("x")
    for _ in range(100):
        keys.reserve(large, "m")
    with pytest.raises(UpstreamExhausted):
        keys.reserve(large, "m")

    assert keys.room_in_s(small, "m") == 0


def test_a_prompt_stays_with_its_key_among_many_and_few_move_when_one_is_added() -> None:
    """By groups of keys first; each has its part, and the second choice is each time the same one."""
    before, after = keys_of(1000), keys_of(1001)
    calls = [make_call(f"{number:04} " * 1000) for number in range(300)]
    homes = [before.reserve(call, "m").key.name for call in calls]
    again = [before.reserve(call, "m").key.name for call in calls]
    moved = sum(after.reserve(call, "m").key.name != home for call, home in zip(calls, homes, strict=True))
    full = before.reserve(calls[0], "m").key
    full.exhaust("m", 60.0, StoppedClock().now())
    second = {before.reserve(calls[0], "m").key.name for _ in range(5)}

    assert homes == again
    assert max(Counter(homes).values()) <= 5
    assert moved <= 6
    assert len(second) == 1
    assert second != {full.name}
