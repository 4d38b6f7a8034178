"""On whose behalf a batch asks: the key that made it, as the policy in force knows it, and the routes open to it."""

from __future__ import annotations

from backends.errors import UnknownModel, UnknownPath
from gateway import routing
from gateway.batches.input_lines import ENDPOINTS
from gateway.batches.records import BatchRow
from gateway.http.auth import Principal
from gateway.runtime import Runtime, Stack


def caller_of(batch: BatchRow, runtime: Runtime) -> Principal | None:
    """The batch's key; None where it is not there any more, or has expired."""
    keyring = runtime.keyring
    caller = keyring.named(batch.key, batch.tenant)
    return None if caller is None or keyring.has_expired(caller) else caller


def stack_for_line(batch: BatchRow, model: str, runtime: Runtime) -> Stack | None:
    """Who answers lines for that model; None where nobody does, or the key may not use it."""
    caller = caller_of(batch, runtime)
    if caller is None:
        return None
    path = batch.endpoint.removeprefix("/v1")
    try:
        stack = routing.stack_for(runtime, caller, model=model, path=path, headers=[])
        routing.check_operation(stack, ENDPOINTS[batch.endpoint], path)
    except (UnknownModel, UnknownPath):
        return None
    return stack
