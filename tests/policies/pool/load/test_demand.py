"""What balancing reads of a call: its length, its blocks, its session."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.operations import Operation
from backends.prompts.text import prompt_text
from backends.protocol import Call
from policies.pool.load.demand import ENDS_TOKENS, Demand, hash_blocks, prompt_cache_key, read_demand
from policies.pool.load.match import look_up
from policies.pool.prompts.prefix_index import PrefixIndex
from tests.support.calls import make_call


def _turns(*texts: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]}


def test_demand_next_turn_begins_with_the_blocks_of_the_one_before() -> None:
    """A conversation grows at its end, so what was sent before is found again."""
    first = read_demand(make_call(extra=_turns("a" * 6000)), wants_blocks=True)
    second = read_demand(make_call(extra=_turns("a" * 6000, "b" * 2000, "c" * 2000)), wants_blocks=True)

    assert len(first.blocks) == 3
    assert second.blocks[:3] == first.blocks
    assert len(second.blocks) == 5
    assert first.tokens == pytest.approx(6000 / 4, rel=0.05)


@given(st.binary(max_size=8000), st.integers(0, 7999))
def test_demand_blocks_differ_from_the_first_changed_byte_on(text: bytes, place: int) -> None:
    """Blocks before a change are the same, all from it on are others: a block stands for everything before it too."""
    place = place % max(1, len(text))
    changed = text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :] if text else b""
    before, after = hash_blocks(text, "salt"), hash_blocks(changed, "salt")

    ends = [4 * tokens for tokens in ENDS_TOKENS if 4 * tokens <= len(text)]
    assert len(before) == len(after) == len(ends)
    assert [one == other for one, other in zip(before, after, strict=True)] == [end <= place for end in ends]


def test_demand_tenants_and_models_share_no_block() -> None:
    """Who asks, and for what, is part of every hash."""
    calls = [make_call("x" * 6000, tenant=tenant, model=model) for tenant in ("a", "b") for model in ("m", "n")]
    blocks = [block for call in calls for block in read_demand(call, wants_blocks=True).blocks]

    assert len(set(blocks)) == len(blocks) == 4 * 3


def test_demand_blocks_grow_so_that_a_book_has_some_hundred_and_fifty() -> None:
    """Some half a megabyte is 145 blocks, and what is longer has no more."""
    for num_bytes in (513 * 1024, 4 * 1024**2):
        demand = read_demand(make_call("x" * num_bytes), wants_blocks=True)
        assert len(demand.blocks) == len(ENDS_TOKENS) == 145
        assert demand.tokens >= num_bytes // 4
    assert all(later > earlier for earlier, later in itertools.pairwise(ENDS_TOKENS))
    assert ENDS_TOKENS[:3] == (256, 768, 1280)


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        (Operation.CHAT, {"messages": None}),
        (Operation.CHAT, {"messages": [{"role": "user", "content": "\ud800"}]}),
        (Operation.CHAT, {"messages": [10**400]}),
        (Operation.CHAT, {"tools": [], "messages": "no list"}),
        (Operation.COMPLETION, {"prompt": [[1, 2, 3], [4]]}),
        (Operation.COMPLETION, {}),
        (Operation.RESPONSES, {"input": [{"role": "user"}], "instructions": None}),
        (Operation.EMBEDDING, {"input": ["a", "b"]}),
        (Operation.PASSTHROUGH, {"anything": 1}),
    ],
    ids=str,
)
def test_demand_any_body_can_be_read(operation: Operation, body: dict[str, Any]) -> None:
    """Whatever the fields hold, there is a length of at least one token and no error."""
    call = make_call(operation=operation, raw=b"{" + b" " * 500 + b"}", body=body)

    assert read_demand(call, wants_blocks=True).tokens >= 1
    assert isinstance(prompt_text(call), bytes)


def test_demand_a_body_that_is_no_object_counts_by_its_bytes() -> None:
    """Files that are uploaded, for instance."""
    assert read_demand(make_call(raw=b"x" * 4000, body=None)).tokens == 1000


def test_demand_only_streams_of_texts_show_a_first_token() -> None:
    """Embeddings come whole whatever the client says."""
    streamed = [read_demand(make_call(operation=each, stream=True)).is_stream for each in Operation]

    assert streamed == [True, True, False, True, False]
    assert not read_demand(make_call()).is_stream


def test_demand_session_is_the_header_else_the_user() -> None:
    """A session's name from either place; none where there is none."""
    header = [(b"accept", b"*/*"), (b"x-session-id", b"s1")]

    assert read_demand(make_call(headers=header, user="u")).session == b"s1"
    assert read_demand(make_call(user="u")).session == b"u"
    assert read_demand(make_call()).session == b""


def test_match_uncached_is_what_a_replica_does_not_hold_but_one_token() -> None:
    """Even a prompt that is held whole has its last token computed."""
    index = PrefixIndex()
    slots = [index.add(1000) for _ in range(3)]
    index.store(slots[0], [1], (64,))
    index.store(slots[1], [1, 2], (64, 128))
    match = look_up(Demand(128, is_stream=True, blocks=[1, 2], ends=(64, 128)), index)

    assert [match.uncached(slot) for slot in slots] == [64, 1, 128]


@pytest.mark.timed
def test_demand_long_prompts_are_read_within_milliseconds() -> None:
    """Reading stays off the clock of others: a prompt of 8 MB takes no longer than its first half megabyte."""
    call = make_call("x" * 8 * 1024**2)
    began = time.process_time()
    for _ in range(5):
        read_demand(call, wants_blocks=True)

    assert (time.process_time() - began) / 5 < 0.02


def test_prompt_cache_key_is_of_the_tenant_and_the_beginning() -> None:
    """The same for every turn of a conversation, for another with the same instructions, and for any model."""
    instructions = {"role": "system", "content": "Be brief. " * 500}
    turns = [instructions, *_turns("a", "b", "c")["messages"]]
    key = prompt_cache_key(make_call(extra={"messages": turns[:2]}, tenant="red"))

    assert len(key) == 32
    assert key == prompt_cache_key(make_call(extra={"messages": turns}, tenant="red", model="other"))
    assert key != prompt_cache_key(make_call(extra={"messages": turns}, tenant="blue"))
    assert key != prompt_cache_key(make_call(extra={"messages": turns[1:] + turns}, tenant="red"))


@pytest.mark.parametrize(
    ("call", "has_key"),
    [
        (make_call(extra=_turns("x" * 4100)), True),
        (make_call("x" * 4100, operation=Operation.RESPONSES), True),
        (make_call(extra=_turns("x" * 4000)), False),
        (make_call("x" * 9000, operation=Operation.EMBEDDING), False),
        (make_call("x" * 9000, operation=Operation.PASSTHROUGH), False),
        (make_call(raw=b"x" * 9000, body=None), False),
    ],
    ids=["chat", "responses", "short", "embedding", "passthrough", "no_object"],
)
def test_prompt_cache_key_is_empty_where_nothing_is_kept(call: Call, has_key: bool) -> None:
    """From 1,024 tokens on, of what a model writes an answer to."""
    assert bool(prompt_cache_key(call)) == has_key
