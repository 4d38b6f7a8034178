"""What is reserved, settled and given back adds up, whatever the order and whichever key it ends with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.charges.charge import Charge
from backends.charges.usage import Usage
from backends.quotas.build import build_keys
from backends.quotas.settings import ApiKeyConfig, QuotaConfig
from backends.quotas.upstream_keys import UpstreamKeys
from policies.pool.admission_port import Admitted
from tests.support.calls import make_call
from tests.support.policy.pool import StoppedClock

_TPM = 10**9
_BURST_TOKENS = _TPM // 10


def keys_of(**quota: Any) -> UpstreamKeys:
    """Two keys with a quota each, and one for both."""
    given = [
        ApiKeyConfig.model_validate({"key": f"env:{name}", **quota}, context={"environ": {name: name}}) for name in "AB"
    ]
    shared = QuotaConfig(**quota)
    return build_keys("up", given, shared, lambda _: [], StoppedClock(), has_choice=True, shares_objects=False)


def used_of(keys: UpstreamKeys) -> dict[str, float]:
    """Tokens that are missing, by key."""
    return {name: round(_BURST_TOKENS - left["tokens"].left, 3) for name, left in keys.declared_left().items()}


_ATTEMPTS = st.lists(
    st.tuples(
        st.integers(0, 4000),
        st.one_of(st.none(), st.tuples(st.integers(0, 5000), st.integers(0, 5000))),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
)


@given(_ATTEMPTS, st.randoms(use_true_random=False))
def test_after_all_is_settled_what_is_missing_is_what_was_used(attempts: Any, random: Any) -> None:
    """Of each key what went out with it last, of all together the sum; attempts end in any order."""
    keys = keys_of(tpm=_TPM)
    used = {"all": 0, "1": 0, "2": 0}
    ends = []
    for size, usage, moves, is_unsent in attempts:
        reserved = keys.reserve(make_call("x" * size), "m")
        if moves:
            other = keys.choose_other(reserved, [reserved.key])
            assert other is not None
            reserved.move_to(other, 1000.0)
        charge = Charge("up", "m")
        if is_unsent:
            ends.append(reserved.give_back)
            continue
        charge.when_settled(reserved.settle)
        told = None if usage is None else Usage(*usage)
        ends.append(lambda charge=charge, told=told: charge.settle(told))
        if usage is not None:
            used["all"] += sum(usage)
            used[reserved.key.name] += sum(usage)
    random.shuffle(ends)
    for end in ends:
        end()

    assert used_of(keys) == pytest.approx(used)


def test_what_admission_took_for_a_caller_that_left_is_given_back() -> None:
    """Its request too."""
    keys = keys_of(rpm=600, tpm=_TPM)
    call = make_call("x" * 1000)
    before = keys.declared_left()
    call.facts.reservation = keys.reserve(call, "m")
    taken = keys.declared_left()
    attempt: Any = type("Attempt", (), {"end": lambda self: None})()
    place: Any = None
    Admitted(place, place, attempt).give_up(call)

    assert taken != before
    assert keys.declared_left() == before
    assert call.facts.reservation is None


def test_the_mean_answer_is_learned_from_answers_that_were_counted() -> None:
    """And not from estimates, nor from what writes nothing."""
    keys = keys_of(tpm=_TPM)
    call = make_call("x")
    for usage, is_estimated in ((Usage(1, 1000), False), (Usage(1, 9), True), (None, False)):
        for _ in range(400):
            reserved = keys.reserve(call, "m")
            charge = Charge("up", "m")
            charge.when_settled(reserved.settle)
            charge.settle(usage, is_estimated=is_estimated)

    assert keys.reserve(call, "m").tokens == pytest.approx(1000 + len(call.raw) // 4, rel=0.01)
