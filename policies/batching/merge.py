"""Embedding calls put together and their answer taken apart: who may share one, whose is which vector, who pays what.

Pure. Vectors travel as the bytes that the upstream wrote, numbers and base64 alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import msgspec

from backends.header_names import HeaderNames
from backends.json_errors import NOT_JSON
from backends.operations import Operation
from backends.protocol import Call, Facts, Usage
from policies.cache.key import digest_of

Inputs = list[str] | list[list[int]]
"""Texts, or texts as token ids; never both."""

_Item = dict[str, msgspec.Raw]
_read_answer = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_items = msgspec.json.Decoder(list[_Item]).decode
_read_index = msgspec.json.Decoder(int).decode


def inputs_of(call: Call, *, max_batch: int, max_bytes: int) -> Inputs | None:
    """What the call wants vectors of; None where it must go by itself.

    That is: another operation, a stream, more than a batch holds, and inputs which upstreams refuse or read in more
    than one way in a list (nothing, the empty text, mixtures, objects).
    """
    if call.operation is not Operation.EMBEDDING or call.body is None or call.stream or len(call.raw) > max_bytes:
        return None
    value = call.body.get("input")
    if type(value) is str:
        return [value] if value else None
    if type(value) is not list or not value:
        return None
    if all(type(item) is str and item for item in value):
        inputs: Inputs = value
    elif _are_tokens(value):
        inputs = [value]
    elif all(type(item) is list and item and _are_tokens(item) for item in value):
        inputs = value
    else:
        return None
    return inputs if len(inputs) <= max_batch else None


def group_of(call: Call, inputs: Inputs, read: HeaderNames) -> bytes:
    """Names those calls which may share an upstream call: 32 bytes of everything that could change an answer.

    Nothing of two tenants meets. All of the body counts but for `input`, fields that nobody knows included, and every
    header that the backends read.
    """
    assert call.body is not None, "a call with inputs has a body"
    return digest_of(
        (
            type(inputs[0]) is str,
            call.tenant,
            call.model,
            call.method,
            call.path,
            call.query,
            call.priority,
            msgspec.structs.astuple(call.timeouts),
            msgspec.structs.astuple(call.slo) if call.slo is not None else None,
            read.taken(call.headers),
            {name: value for name, value in call.body.items() if name != "input"},
        )
    )


class Portion(NamedTuple):
    """A call's part of a whole: from `begin` to `end` of `whole`, where all parts lie side by side."""

    begin: int
    end: int
    whole: int

    def of(self, total: int) -> int:
        """Its part of a sum of whole things. All parts together are the sum; exact where the sum is `whole`."""
        return total * self.end // self.whole - total * self.begin // self.whole


def portions_of(inputs: Sequence[Inputs]) -> list[Portion]:
    """What each call pays of a common bill: by its token ids, or by the bytes of its texts in UTF-8."""
    weights = [sum(len(item.encode()) if isinstance(item, str) else len(item) for item in each) for each in inputs]
    bounds = list(accumulate(weights, initial=0))
    return [Portion(begin, end, bounds[-1]) for begin, end in pairwise(bounds)]


def merged(calls: Sequence[Call], inputs: Sequence[Inputs], facts: Facts) -> Call:
    """One call for the inputs of several, one after the other; else it is the first of them, with the last deadline."""
    first = calls[0]
    assert first.body is not None, "a call with inputs has a body"
    body = {**first.body, "input": [item for each in inputs for item in each]}
    return msgspec.structs.replace(
        first,
        body=body,
        raw=msgspec.json.encode(body),
        deadline=max(call.deadline for call in calls),
        facts=facts,
    )


def parted(body: bytes, counts: Sequence[int], portions: Sequence[Portion]) -> list[bytes] | None:
    """The answer of each call, whose inputs are `counts`; None where it does not say which vector is whose.

    Every other field goes to each of them; numbers in `usage` are shared out.
    """
    try:
        answer = _read_answer(body)
        items = _read_items(answer["data"])
        by_index = {_read_index(item["index"]): item for item in items}
        usage = msgspec.json.decode(answer["usage"]) if "usage" in answer else None
    except (*NOT_JSON, KeyError):
        return None
    bounds = list(accumulate(counts, initial=0))
    if len(items) != bounds[-1] or by_index.keys() != set(range(bounds[-1])):
        return None
    bodies = []
    for (begin, end), portion in zip(pairwise(bounds), portions, strict=True):
        data = [_placed(by_index[place], place - begin) for place in range(begin, end)]
        part: dict[str, Any] = {**answer, "data": data}
        try:
            if usage is not None:
                part["usage"] = _part_of(usage, portion)
            bodies.append(msgspec.json.encode(part))
        except RecursionError:
            return None
    return bodies


def usage_of(usage: Usage | None, portion: Portion) -> Usage | None:
    """A call's part of what was counted."""
    return Usage(*map(portion.of, msgspec.structs.astuple(usage))) if usage is not None else None


def _part_of(value: object, portion: Portion) -> object:
    if isinstance(value, dict):
        return {name: _part_of(each, portion) for name, each in value.items()}
    if type(value) is int:
        return portion.of(value)
    if type(value) is float:
        return value * (portion.end - portion.begin) / portion.whole
    return value


def _placed(item: _Item, index: int) -> _Item:
    return {**item, "index": msgspec.Raw(b"%d" % index)}


def _are_tokens(values: list[Any]) -> bool:
    return all(type(value) is int for value in values)
