"""Which calls a target that only answers completions can be asked token by token, and stay exactly what they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.protocol import Call
from policies.single_stream import asks_for_one_answer

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "logit_bias", "ignore_eos")
"""Fields that say of each token by itself how it is chosen."""
_KNOWN = frozenset(
    {
        *_SAMPLING,
        *("model", "messages", "prompt", "stream", "stream_options", "user", "n", "best_of", "stop"),
        *("max_tokens", "max_completion_tokens"),
    }
)
"""With any other field an answer may depend on more than its last token's choice: penalties, grammars, tools, seeds."""


def most_tokens(call: Call) -> int | None:
    """How many tokens an answer has at most; None where it cannot be asked token by token, for any reason."""
    body = call.body
    if body is None or not asks_for_one_answer(call) or any(body[name] is not None for name in body.keys() - _KNOWN):
        return None
    if any(not isinstance(each, str) or not each for each in stops_of(body)):
        return None
    for message in body.get("messages") or ():
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            return None
        if message.keys() - {"role", "content", "name"}:
            return None
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    return most if type(most) is int and most > 1 else None


def is_greedy(body: Mapping[str, Any]) -> bool:
    """Whether each token is the likeliest one, as the model itself finds it."""
    temperature = body.get("temperature")
    return type(temperature) in (int, float) and temperature == 0 and not body.get("logit_bias")


def stops_of(body: Mapping[str, Any]) -> tuple[Any, ...]:
    """The strings that end the answer."""
    stop = body.get("stop") or ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def sampling_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """How each token is chosen, as the body of a completion says it."""
    return {name: body[name] for name in _SAMPLING if body.get(name) is not None}
