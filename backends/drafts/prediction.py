"""Text that an answer will probably repeat, and which upstreams are told: those whose usage shows that they take it.

An upstream that checks predicted text (OpenAI's field `prediction`) answers as it would have without, sooner, and may
bill what it rejects. Others refuse the field, with some models or beside some other fields, or pass over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

PredictedBy = Literal["client", "cache", "file", "turn"]
"""Where a text comes from: the call's own `prediction`; the answer to a near question; a file in the call that an
answer is about to rewrite; the last answer of the same conversation."""
FIELD = "prediction"

_BESIDE = ("tools", "functions", "logprobs", "presence_penalty", "frequency_penalty", "audio", "max_completion_tokens")
"""Fields beside which upstreams are known to refuse it."""
_MOST_MODELS = 64
_LEAST_ANSWER = 16
"""Tokens of an answer from which it says something that none was counted as predicted."""
_TRIED = 3
_FIRST_PAUSE, _LAST_PAUSE = 16, 1024
_WEIGHT = 0.2
"""Of an answer's share of accepted tokens, once there are some."""


class Prediction(msgspec.Struct, frozen=True):
    """A text, never empty. `least` of its tokens, as a share, have to come true where an upstream may bill the others:
    where fewer do, it is not told such texts for a while.
    """

    text: str
    source: PredictedBy
    least: float = 0.5


class _Pause:
    """Calls that are left alone, twice as many each time."""

    __slots__ = ("left", "next")

    def __init__(self) -> None:
        self.left, self.next = 0, _FIRST_PAUSE

    def begin(self) -> None:
        self.left, self.next = self.next, min(2 * self.next, _LAST_PAUSE)

    def pass_by(self) -> bool:
        """Whether this call is one of them."""
        self.left -= self.left > 0
        return self.left > 0


class _OfSource:
    __slots__ = ("num_answers", "pause", "share")

    def __init__(self) -> None:
        self.num_answers, self.share = 0, 0.0
        self.pause = _Pause()


class _OfModel:
    __slots__ = ("num_untold", "pause", "refused", "sources")

    def __init__(self) -> None:
        self.refused: dict[frozenset[str], _Pause] = {}
        self.num_untold = 0
        self.pause = _Pause()
        self.sources: dict[PredictedBy, _OfSource] = {}


class TakenPredictions:
    """What is known of one upstream. Counts calls and reads no clock; knows no text and no caller.

    What was found out with one caller's calls holds for all: whether the upstream takes predictions of a model, and
    what share of each source's tokens comes true.
    """

    def __init__(self) -> None:
        self._models: dict[str, _OfModel] = {}

    def takes(self, model: str, body: Mapping[str, Any], source: PredictedBy) -> bool:
        """Whether a call is to be sent with a prediction; asked once for each call that has one."""
        known = self._of(model)
        beside = fields_beside(body)
        # Each is asked, for each counts the calls that it has let pass.
        pauses = [pause for fields, pause in known.refused.items() if fields <= beside]
        pauses += [known.pause, self._source(known, source).pause]
        num_pausing = sum(pause.pass_by() for pause in pauses)
        return not num_pausing

    def note_refusal(self, model: str, body: Mapping[str, Any]) -> None:
        """The upstream has refused a call for its prediction: so it will those with the same fields beside it."""
        self._of(model).refused.setdefault(fields_beside(body), _Pause()).begin()

    def note_answer(self, model: str, prediction: Prediction, accepted: int, rejected: int, num_tokens: int) -> None:
        """An answer of `num_tokens` was told with a prediction, of whose tokens so many were accepted and rejected."""
        known = self._of(model)
        if not accepted and not rejected:
            known.num_untold += num_tokens >= _LEAST_ANSWER
            if known.num_untold >= _TRIED:
                known.num_untold = _TRIED - 1
                known.pause.begin()
            return
        known.num_untold, known.pause = 0, _Pause()
        of = self._source(known, prediction.source)
        of.num_answers += 1
        share = accepted / (accepted + rejected)
        of.share += max(_WEIGHT, 1 / of.num_answers) * (share - of.share)
        if of.share >= prediction.least:
            of.pause = _Pause()
        elif of.num_answers >= _TRIED:
            of.pause.begin()

    def _of(self, model: str) -> _OfModel:
        known = self._models.get(model)
        if known is None:
            if len(self._models) >= _MOST_MODELS:
                del self._models[next(iter(self._models))]
            known = self._models[model] = _OfModel()
        return known

    def _source(self, known: _OfModel, source: PredictedBy) -> _OfSource:
        return known.sources.setdefault(source, _OfSource())


def fields_beside(body: Mapping[str, Any]) -> frozenset[str]:
    """What of a call an upstream may not take beside a prediction."""
    beside = {name for name in _BESIDE if body.get(name)}
    if body.get("n") not in (None, 1):
        beside.add("n")
    return frozenset(beside)


def is_refusal(status: int, body: bytes | None) -> bool:
    """Whether an upstream's error answer is about the prediction."""
    return status in (400, 404, 415, 422) and body is not None and b"prediction" in body.lower()


def text_of(content: object) -> str:
    """The text of a message's or a prediction's content, its parts joined; "" where it is something else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        return ""
    texts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str))
