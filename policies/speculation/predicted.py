"""A stage that tells the backends within what an answer will probably repeat, where a text for that is at hand.

Who takes it checks every token, so answers are what they would have been. Who does not is asked as without: which
upstreams take it is theirs to find out (`backends/drafts/prediction.py`).
"""

from __future__ import annotations

from functools import partial

from msgspec import structs

from backends.drafts.facts import SpeculationFacts
from backends.drafts.prediction import PredictedBy, Prediction
from backends.operations import Operation
from backends.protocol import Backend, Call, Reply
from backends.stream import StreamEnd
from policies.speculation.predicted_text import found_text, own_prediction
from policies.speculation.settings import PredictedPolicy
from policies.stage import Stage


class Predicted(Stage):
    """Around a route's pool, below the caches: what a semantic cache has found comes with the call."""

    def __init__(self, inner: Backend, policy: PredictedPolicy) -> None:
        super().__init__(inner)
        self._policy = policy

    async def send(self, call: Call) -> Reply:
        """Answer through the pool. Raises: as the pool."""
        prediction = self._prediction(call)
        if prediction is None:
            return await self._inner.send(call)
        reply = await self._inner.send(structs.replace(call, predicted=prediction))
        if reply.stream is None:
            _note(call, prediction.source)
        else:
            reply.stream.on_end.append(partial(_note, call, prediction.source))
        return reply

    def _prediction(self, call: Call) -> Prediction | None:
        body = call.body
        if body is None or call.operation is not Operation.CHAT or call.pinned:
            return None
        if text := own_prediction(body):
            return self._of("client", text)
        if call.predicted is not None:
            return structs.replace(call.predicted, least=self._policy.least_accepted)
        found = found_text(body)
        return self._of(*found) if found is not None else None

    def _of(self, source: PredictedBy, text: str) -> Prediction | None:
        sources = self._policy.sources
        return Prediction(text, source, self._policy.least_accepted) if source in sources else None


def _note(call: Call, source: PredictedBy, how: StreamEnd | None = None) -> None:
    """The answer is over: what became of the prediction is the call's to tell."""
    facts, usage = call.facts, call.facts.usage
    own = facts.speculation
    name = f"prediction:{source}"
    if own is not None:
        # Of an engine in this process, its own drafts included, or why the upstream was not told.
        facts.speculation = structs.replace(own, draft=name)
    elif usage is not None:
        accepted, rejected = usage.accepted_prediction_tokens, usage.rejected_prediction_tokens
        facts.speculation = SpeculationFacts(name, accepted + rejected, accepted)
