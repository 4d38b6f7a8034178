"""Decoding an engine's events: every form in which they have been sent, and anything else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pool.prompts.kv_events import Cleared, Removed, Stored, decode_batch
from tests.support.engine.kv_engine import Form, encode_batch, encode_event

FIELDS = {
    "block_hashes": [1, 2**64 - 1],
    "parent_block_hash": -5,
    "token_ids": [7, 8, 9, 10],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
}


def _one(event: Any) -> Any:
    events, failed = decode_batch(encode_batch(event))
    assert failed == 0
    return events[0]


@pytest.mark.parametrize("batch", ["array", "map"])
@pytest.mark.parametrize("form", ["array", "map"])
def test_decode_reads_arrays_and_maps_alike(batch: Form, form: Form) -> None:
    """Older engines send arrays, newer ones maps, of events and of batches."""
    payload = encode_batch(
        encode_event("BlockStored", FIELDS, form),
        encode_event("BlockRemoved", {"block_hashes": [b"\1\2"], "medium": None}, form),
        encode_event("AllBlocksCleared", {}, form),
        form=batch,
    )

    events, failed = decode_batch(payload)

    assert events == [Stored([1, 2**64 - 1], -5, [7, 8, 9, 10], 2, None, "GPU"), Removed([b"\1\2"]), Cleared()]
    assert failed == 0


def test_decode_takes_the_first_five_fields_alone() -> None:
    """So vLLM 0.9 sent them: neither medium nor anything after it."""
    event = _one(["BlockStored", [1], None, [3, 4], 2, None])

    assert event == Stored([1], None, [3, 4], 2)
    assert event.is_followed


def test_decode_passes_over_fields_and_kinds_that_are_not_known() -> None:
    """What engines add tomorrow neither breaks nor counts as nonsense."""
    payload = encode_batch(
        ["BlockRemoved", [1], "GPU", 0, "new", {"more": 1}],
        {"type": "BlockRemoved", "block_hashes": [2], "remaining_copy_counts": [0]},
        {"type": "BlockMigrated", "block_hashes": [3]},
    )

    events, failed = decode_batch(payload)

    assert events == [Removed([1], "GPU", 0), Removed([2])]
    assert failed == 0


@pytest.mark.parametrize(
    ("change", "is_followed"),
    [
        ({}, True),
        ({"medium": None}, True),
        ({"medium": "CPU"}, False),
        ({"kv_cache_spec_kind": "full_attention"}, True),
        ({"kv_cache_spec_kind": "mla_attention"}, True),
        ({"kv_cache_spec_kind": "sliding_window"}, False),
        ({"kv_cache_spec_kind": "mamba"}, False),
        ({"block_hashes": [1]}, False),
    ],
)
def test_stored_is_followed_where_it_decides_about_a_prompt(change: dict[str, Any], is_followed: bool) -> None:
    """Only whole blocks of attention to everything, on the device."""
    assert _one({"type": "BlockStored", **FIELDS, **change}).is_followed is is_followed


@pytest.mark.parametrize(
    ("event", "adapter", "extras"),
    [
        ({**FIELDS, "parent_block_hash": None}, "", ()),
        ({**FIELDS, "extra_keys": [["salt"], None]}, "", ("salt",)),
        (
            {**FIELDS, "lora_name": "tuned", "lora_id": 3, "extra_keys": [["tuned", "salt"], ["tuned"]]},
            "tuned",
            ("salt",),
        ),
        ({**FIELDS, "lora_id": 3}, "#3", ()),
        ({**FIELDS, "extra_keys": [[["picture", 4]], None]}, "", ("['picture', 4]",)),
        ({**FIELDS, "parent_block_hash": None, "cache_salt": "salt"}, "", ("salt",)),
    ],
)
def test_stored_says_what_tells_its_first_block_from_others(
    event: dict[str, Any], adapter: str, extras: tuple[str, ...]
) -> None:
    """The adapter, and what else is not tokens: salts and pictures."""
    stored = _one({"type": "BlockStored", **event})

    assert (stored.adapter, stored.extras(0), stored.extras(1)) == (adapter, extras, ())


def test_stored_finds_a_salt_at_the_end_of_an_array() -> None:
    """SGLang's arrays end with a map of what is not in vLLM's."""
    stored = _one(["BlockStored", [1], None, [3, 4], 2, None, "GPU", {"cache_salt": "tenant-a", "session_id": "s"}])

    assert (stored.adapter, stored.extras(0)) == ("", ("tenant-a",))


@pytest.mark.parametrize(
    "event",
    [
        {"type": "BlockStored", **FIELDS, "token_ids": "all of them"},
        {"type": "BlockStored", **FIELDS, "token_ids": [-1]},
        {"type": "BlockStored", **FIELDS, "block_size": 0},
        {"type": "BlockRemoved"},
        ["BlockRemoved"],
        {"block_hashes": [1]},
        [],
        None,
        17,
    ],
)
def test_decode_counts_an_event_that_cannot_be_read_and_goes_on(event: Any) -> None:
    """One bad event costs no other of its batch."""
    events, failed = decode_batch(encode_batch(event, ["AllBlocksCleared"]))

    assert (events, failed) == ([Cleared()], 1)


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", msgspec.msgpack.encode([1.5]), msgspec.msgpack.encode("batch"), b"\x91" * 5000]
)
def test_decode_refuses_what_is_no_batch(payload: bytes) -> None:
    """With one kind of error, so that nothing else can come up."""
    with pytest.raises(ValueError):
        decode_batch(payload)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=12,
)
TAGS = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])
EVENTS = st.one_of(
    JUNK,
    st.tuples(TAGS, JUNK, JUNK, JUNK, JUNK).map(list),
    st.dictionaries(st.sampled_from([*FIELDS, "extra_keys", "lora_name", "group_idx"]), JUNK).flatmap(
        lambda fields: TAGS.map(lambda tag: {**fields, "type": tag})
    ),
)


@given(
    st.one_of(
        st.binary(max_size=64), JUNK.map(msgspec.msgpack.encode), st.lists(EVENTS).map(lambda e: encode_batch(*e))
    )
)
def test_decode_of_anything_is_events_or_a_value_error(payload: bytes) -> None:
    """Nothing that arrives raises anything else, and what is decoded can be asked everything."""
    try:
        events, _ = decode_batch(payload)
    except ValueError:
        return
    for event in events:
        if isinstance(event, Stored):
            assert isinstance(event.adapter, str)
            assert all(isinstance(key, str) for key in event.extras(0))
        assert isinstance(event, Cleared) or event.is_followed in (True, False)
