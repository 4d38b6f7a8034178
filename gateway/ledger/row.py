"""A row of the ledger. The first of a call has part 0; what is charged or corrected for it later are further parts.

Amounts are whole pico-dollars; None is "not known", which is never the same as 0.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Any

import msgspec

WORKER_KILLED = "worker_killed"
"""The `end` of a call whose worker was gone before it was over."""
BATCH_LINE = "batch"
"""The `kind` of a line that a provider's Batch API has answered, or failed."""


class _FirstFields(msgspec.Struct, array_like=True, gc=False):
    """Those of a row that are known of a call before it is sent, or have their place among these."""

    n: int
    part: int = 0
    at_us: int = 0
    request_id: str = ""
    kind: str = "call"
    key: str = ""
    tenant: str = ""
    team: str = ""
    tags: str = ""
    user: str = ""
    session: str = ""
    agent: str = ""
    route: str = ""
    operation: str = ""
    backend: str = ""
    model: str = ""
    served: str = ""
    stream: bool = False


class Beginning(_FirstFields, array_like=True, gc=False):
    """What is known of a call before it is sent, as its row will say it. As far as `stream` they are the first fields
    of a row, which older versions have written in its place.
    """

    priority: str = ""
    held: int | None = None
    """The most that it can cost, where a budget holds that for it."""


class Row(_FirstFields, array_like=True, gc=False):
    """One charge. `n` counts the calls of one worker; times are in microseconds, `at_us` since the Unix epoch.

    `input_tokens` are all of the prompt, `cached_tokens` those of them that the provider had kept, `written_*` those
    that it was paid to keep; `output_tokens` are all of the answer, `reasoning_tokens` those of them that nobody sees.
    `saved_*` add up to what the call would have cost without the gateway, less what it did cost.
    """

    cache: str = ""
    end: str = ""
    status: int = 0
    error: str = ""
    fault: str = ""
    input_tokens: int = 0
    cached_tokens: int = 0
    written_5m_tokens: int = 0
    written_1h_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    image_tokens: int = 0
    estimated: bool = False
    cost: int | None = None
    list_cost: int | None = None
    price: str = ""
    saved_exact: int | None = None
    saved_joined: int | None = None
    saved_semantic: int | None = None
    saved_prompt: int | None = None
    saved_provider: int | None = None
    saved_cheaper: int | None = None
    saved_batch: int | None = None
    saved_share: int | None = None
    saved_extra: int | None = None
    ttft_us: int | None = None
    tpot_us: int | None = None
    queue_us: int | None = None
    total_us: int = 0
    in_slo: bool | None = None
    sent_us: int | None = None
    """From its arrival until it was sent to a backend for the first time."""
    attempts: int = 0
    drafted_tokens: int = 0
    """Guessed by a draft, or predicted, and looked at by who answered; those of them that came to be are accepted."""
    accepted_tokens: int = 0
    priority: str = ""


FIELDS: tuple[str, ...] = Row.__struct_fields__
TEXTS: frozenset[str] = frozenset(field.name for field in msgspec.structs.fields(Row) if field.type is str)
TOKENS: tuple[str, ...] = tuple(name for name in FIELDS if name.endswith("_tokens"))
SAVINGS: tuple[str, ...] = tuple(name for name in FIELDS if name.startswith("saved_"))
AMOUNTS: tuple[str, ...] = ("cost", "list_cost", *SAVINGS)


Values = tuple[Any, ...]
"""A row's `FIELDS`, in their order."""
Stored = tuple[Any, ...]
"""A row for a store: its `COLUMNS`."""
COLUMNS: tuple[str, ...] = (*FIELDS, "worker", "day")
AT: int = FIELDS.index("at_us")
_KIND, _REQUEST_ID, _END = map(FIELDS.index, ("kind", "request_id", "end"))
_TWO_NUMBERS = Struct("<QQ")

values_of = msgspec.structs.astuple
"""As they are read from a journal, but for texts that are members of enumerations."""


def killed(beginning: bytes) -> Values:
    """The row of a call that has begun so and is never over. Raises: DecodeError.

    What budgets held for it is spent, as in Redis: nobody knows how far its upstream came, and a budget that is read
    back from the ledger must not take it for nothing.
    """
    begun = msgspec.structs.asdict(msgspec.msgpack.decode(beginning, type=Beginning))
    held = begun.pop("held")
    row = Row(**begun, cost=held)
    row.end = WORKER_KILLED
    row.fault = "gateway"
    row.estimated = True
    return values_of(row)


def stored(values: Values, worker: int, day: int) -> Stored:
    """A row for a store of a row's values, under the key that it has there: the worker, the number, the part."""
    if values[_KIND] == BATCH_LINE:
        worker, values = _with_its_own_key(values)
    return values + (worker, day)  # noqa: RUF005  # to unpack 60 values takes three times as long


def _with_its_own_key(values: Values) -> tuple[int, Values]:
    """Of the line of a batch: whoever goes on after a kill notes again what may have been noted, and it is one row. A
    line that has failed and was answered later, when it was asked again, is two.
    """
    line = f"{values[_REQUEST_ID]} {values[_END]}".encode()
    # The store has 63 bits for each.
    worker, n = (number >> 1 for number in _TWO_NUMBERS.unpack(blake2b(line, digest_size=16).digest()))
    return worker, (n, *values[1:])
