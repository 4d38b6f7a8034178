"""A call with a prediction on its way to an upstream: sent with it where that is taken, else without."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from msgspec import structs

from backends.drafts.facts import SpeculationFacts
from backends.drafts.prediction import FIELD, Prediction, TakenPredictions, is_refusal
from backends.http.splice import set_field, without_field
from backends.protocol import Call, Reply
from backends.stream import StreamEnd


async def send_predicted(call: Call, taken: TakenPredictions, send: Callable[[Call], Awaitable[Reply]]) -> Reply:
    """Answer the call through `send`, once more without its prediction where the upstream refuses that; what comes of
    it is noted in `taken`. Raises: as `send`.
    """
    body, prediction = call.body, call.predicted
    if body is None or prediction is None:
        return await send(call)
    if not taken.takes(call.model, body, prediction.source):
        return await send(_without_prediction(call))
    reply = await send(_with_prediction(call, prediction))
    if is_refusal(reply.status, reply.body):
        taken.note_refusal(call.model, body)
        call.facts.speculation = SpeculationFacts("prediction", ended="refused")
        return await send(_without_prediction(call))
    if reply.stream is not None:
        reply.stream.on_end.append(partial(_note, call, prediction, taken))
    elif reply.status < 400:
        _note(call, prediction, taken, StreamEnd.CLEAN)
    return reply


def _note(call: Call, prediction: Prediction, taken: TakenPredictions, how: StreamEnd) -> None:
    usage = call.facts.usage
    if usage is not None and how is StreamEnd.CLEAN:
        counted = usage.accepted_prediction_tokens, usage.rejected_prediction_tokens
        taken.note_answer(call.model, prediction, *counted, usage.completion_tokens)


def _with_prediction(call: Call, prediction: Prediction) -> Call:
    """The client's own stays as it is."""
    raw, body = call.raw, call.body
    if body is None or body.get(FIELD) is not None:
        return call
    value = {"type": "content", "content": prediction.text}
    return structs.replace(call, raw=set_field(raw, body, FIELD, value), body={**body, FIELD: value})


def _without_prediction(call: Call) -> Call:
    """The call as if nobody had predicted anything, its client included."""
    raw, body = call.raw, call.body
    if body is not None and FIELD in body:
        raw, body = without_field(body, FIELD)
    return structs.replace(call, raw=raw, body=body, predicted=None)
