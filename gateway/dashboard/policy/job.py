"""What a process that looks at policies is told, and what it is told of calls that have been."""

from __future__ import annotations

import msgspec


class PastCall(msgspec.Struct, array_like=True, frozen=True):
    """A call that a backend or the exact cache (`cache` is `hit` or `joined`) has answered, from the ledger. Times in
    microseconds; `at_us` since the Unix epoch.
    """

    at_us: int
    key: str
    tenant: str
    model: str
    backend: str
    cache: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_us: int | None
    ttft_us: int | None
    total_us: int


class PolicyJob(msgspec.Struct, frozen=True):
    """`new` is read and compared with `old`; where there are `calls`, both are tried on them.

    Both are files by their paths below the policy's folder, the first one in front. `variables` are the names of those
    variables of the environment that are set.
    """

    new: dict[str, str]
    old: dict[str, str] | None = None
    variables: list[str] = []
    calls: list[PastCall] = []
    loads: list[float] = []
    """Where there are any, nothing is compared: `new` is tried at so many times the traffic of the calls, each."""
