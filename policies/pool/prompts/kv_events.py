"""The events by which an engine tells what its prompt cache holds, as vLLM and SGLang encode them in msgpack.

A batch is [time, events, rank]; both it and its events are arrays or, from newer engines, maps. Fields that are not
known are passed over, so that engines may add some. Written from the documented format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from backends.json_errors import NOT_JSON

BlockHash = int | bytes
"""An engine's own name for a block and all before it. What it is made of differs between engines and versions."""

_Token = Annotated[int, Meta(ge=0, lt=2**32)]
_ON_DEVICE = (None, "GPU", "gpu")


class Stored(msgspec.Struct, frozen=True):
    """Blocks that are kept from now on, each behind the one before, the first behind `parent_block_hash`.

    `extra_keys` is what else than tokens tells a block from others. Engines of several kinds of attention have a
    group of blocks for each kind.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[_Token]
    block_size: Annotated[int, Meta(gt=0)]
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | dict[str, Any] | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    cache_salt: str | None = None

    @property
    def is_followed(self) -> bool:
        """Whether these are blocks that decide about a prompt: on the device, of attention to all that is before."""
        kind = self.kv_cache_spec_kind
        is_whole = len(self.token_ids) == len(self.block_hashes) * self.block_size
        return self.medium in _ON_DEVICE and is_whole and (kind is None or "full" in kind or kind.startswith("mla"))

    @property
    def adapter(self) -> str:
        """The adapter's name; a stand-in where only its number is known, empty for the model itself."""
        if isinstance(self.lora_name, str) and self.lora_name:
            return self.lora_name
        return f"#{self.lora_id}" if self.lora_id else ""

    def extras(self, index: int) -> tuple[str, ...]:
        """What tells the block of that index from others of the same tokens and adapter, as text."""
        keys = self.extra_keys[index] if self.extra_keys is not None and index < len(self.extra_keys) else None
        if keys is not None:
            return tuple(str(key) for key in keys if key != self.lora_name)
        # SGLang says it in a field of its own, or in a map of such at the end of an array.
        more = self.lora_name if isinstance(self.lora_name, dict) else {}
        salt = self.cache_salt or more.get("cache_salt")
        return (str(salt),) if salt and index == 0 and self.parent_block_hash is None else ()


class Removed(msgspec.Struct, frozen=True):
    """Blocks that are gone."""

    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None

    @property
    def is_followed(self) -> bool:
        """Whether they are gone from the device."""
        return self.medium in _ON_DEVICE


class Cleared(msgspec.Struct, frozen=True):
    """Nothing is kept any more."""


Event = Stored | Removed | Cleared
_KINDS: dict[object, type[Event]] = {"BlockStored": Stored, "BlockRemoved": Removed, "AllBlocksCleared": Cleared}
_FIELDS = {Stored: Stored.__struct_fields__[:-1], Removed: Removed.__struct_fields__, Cleared: ()}
"""The order in arrays; SGLang's salt is in maps only."""


def decode_batch(payload: bytes) -> tuple[list[Event], int]:
    """The events of a batch, and how many in it could not be read. Kinds that are not known are left out.

    Raises: ValueError for what is no batch at all.
    """
    try:
        batch = msgspec.msgpack.decode(payload)
    except NOT_JSON as error:
        raise ValueError(f"no msgpack: {error}") from error
    found = batch.get("events") if isinstance(batch, Mapping) else _at(batch, 1)
    if not isinstance(found, list):
        raise ValueError("a batch without events")
    events: list[Event] = []
    failed = 0
    for each in found:
        tag = each.get("type") if isinstance(each, Mapping) else _at(each, 0)
        kind = _KINDS.get(tag) if isinstance(tag, str) else None
        if kind is None:
            failed += not isinstance(tag, str)
            continue
        # An array may be longer than what is known of it, and shorter by fields that have a default.
        fields = each if isinstance(each, Mapping) else dict(zip(_FIELDS[kind], each[1:], strict=False))
        try:
            events.append(msgspec.convert(fields, kind))
        except msgspec.ValidationError:
            failed += 1
    return events, failed


def _at(value: object, index: int) -> object:
    return value[index] if isinstance(value, list) and len(value) > index else None
