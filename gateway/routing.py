"""From a caller and what it asks for to the stack that answers, for requests and for lines of batches."""

from __future__ import annotations

from backends.errors import UnknownModel, UnknownPath
from backends.operations import Operation
from backends.protocol import Headers
from gateway.http.auth import Principal
from gateway.runtime import Runtime, Stack


def stack_for(
    runtime: Runtime, principal: Principal, *, model: str, method: str = "POST", path: str, headers: Headers
) -> Stack:
    """The stack of the route that takes a caller's call. Raises: UnknownModel, UnknownPath."""
    if not principal.may_use(model):
        raise not_for_this_key(model, path)
    route = runtime.matcher.match(model=model, path=path, headers=headers, key=principal.key, tenant=principal.tenant)
    if route is None or not principal.may_take(route.name):
        raise _unknown_model(model) if model else UnknownPath(f"no route takes {method} {path}")
    return runtime.stacks[route.name]


def not_for_this_key(model: str, path: str) -> UnknownModel | UnknownPath:
    """What a caller is told whose key is not for that model."""
    if model:
        return _unknown_model(model)
    # A body that cannot be read may name any model, so a key for some models is not for it.
    return UnknownPath(f"this key is for certain models only, and this call to {path} names none that could be read")


def check_operation(stack: Stack, operation: Operation, path: str) -> None:
    """Raises: UnknownPath where none of a route's backends answers such calls."""
    if operation not in stack.operations:
        raise UnknownPath(f"the backends of this route do not answer {path}")


def _unknown_model(model: str) -> UnknownModel:
    # A caller does not learn which of the two it is.
    return UnknownModel(f'the model "{model}" does not exist here, or this key may not use it', param="model")
