"""Merges embedding calls into one and splits its answer: which calls may share, whose vector is which, who pays what.

Pure. Vectors are passed on as the bytes that the upstream wrote, whether as numbers or in base64.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import msgspec

from backends.charges.charge import Charge
from backends.charges.usage import Usage
from backends.header_names import HeaderNames
from backends.json_errors import NOT_JSON
from backends.operations import Operation
from backends.protocol import Call, Facts
from policies.cache.key import digest_of

Inputs = list[str] | list[list[int]]
"""Either texts, or token ids of texts; a call never has both."""

_Item = dict[str, msgspec.Raw]
_read_answer = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_items = msgspec.json.Decoder(list[_Item]).decode
_read_index = msgspec.json.Decoder(int).decode


def inputs_of(call: Call, *, max_batch: int, max_bytes: int) -> Inputs | None:
    """The inputs of an embedding call; None if the call cannot share an upstream call.

    A call cannot share if it is another operation, a stream, or larger than a batch, or if upstreams refuse its input
    or disagree on its meaning in a list (an empty list, an empty text, texts mixed with token ids, objects).
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
    """The key of a group of calls that may share an upstream call: a 32-byte digest of all that could change an answer.

    Calls of different tenants never share. The digest covers the whole body except `input`, with fields that are
    unknown here, and every header that the backends read.
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
    """A call's share of a batch: the range from `begin` to `end` of `whole`; the ranges of a batch do not overlap."""

    begin: int
    end: int
    whole: int

    def of(self, total: int) -> int:
        """This share of an integer total. The shares of a batch add up to the total, without rounding errors."""
        return total * self.end // self.whole - total * self.begin // self.whole


def portions_of(inputs: Sequence[Inputs]) -> list[Portion]:
    """The share of each call in the usage of a batch: by its token ids, or by the UTF-8 bytes of its texts, of which an
    empty one has one too.
    """
    weights = [sum(len(item.encode()) if isinstance(item, str) else len(item) for item in each) or 1 for each in inputs]
    bounds = list(accumulate(weights, initial=0))
    return [Portion(begin, end, bounds[-1]) for begin, end in pairwise(bounds)]


def merge_calls(calls: Sequence[Call], inputs: Sequence[Inputs], facts: Facts) -> Call:
    """The first call with the inputs of all of them, in order, and with their latest deadline."""
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


def split_answer(body: bytes, counts: Sequence[int], portions: Sequence[Portion]) -> list[bytes] | None:
    """The answer to each call, which had `counts` inputs; None if the answer does not say which vector is whose.

    The numbers in `usage` are divided by the portions, every other field is copied to each answer.
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
                part["usage"] = _share_of(usage, portion)
            bodies.append(msgspec.json.encode(part))
        except RecursionError:
            return None
    return bodies


def usage_of(usage: Usage | None, portion: Portion) -> Usage | None:
    """A call's share of the batch's usage."""
    return usage.mapped(portion.of) if usage is not None else None


def share_charges(batch: Facts, charges: Sequence[Charge], portions: Sequence[Portion]) -> None:
    """Settle what the calls of a batch are charged: for each its share of all that was used for it."""
    made = batch.charges or []
    used = [charge.usage for charge in made if charge.usage is not None]
    is_estimated = any(charge.is_estimated for charge in made)
    whole = reduce(operator.add, used) if used else None
    costs = [charge.cost for charge in made]
    # Priced as a whole and then divided, so that the shares add up.
    cost = None if None in costs else sum(filter(None, costs))
    for charge, portion in zip(charges, portions, strict=True):
        charge.backend = batch.backend or ""
        charge.model = batch.upstream_model or charge.model
        charge.price = made[-1].price if made else None
        charge.is_kept_by_gateway = bool(made) and made[-1].is_kept_by_gateway
        share = None if cost is None else portion.of(cost)
        charge.settle_at(share, usage_of(whole, portion), is_estimated=is_estimated)


def _share_of(value: object, portion: Portion) -> object:
    if isinstance(value, dict):
        return {name: _share_of(each, portion) for name, each in value.items()}
    if type(value) is int:
        return portion.of(value)
    if type(value) is float:
        return value * (portion.end - portion.begin) / portion.whole
    return value


def _placed(item: _Item, index: int) -> _Item:
    return {**item, "index": msgspec.Raw(b"%d" % index)}


def _are_tokens(values: list[Any]) -> bool:
    return all(type(value) is int for value in values)
