"""What operators may do with the semantic cache of a running gateway: look, judge, delete, ask why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from backends.errors import StoreUnavailable
from backends.protocol import Call
from policies.cache.semantic.answer_text import text_of
from policies.cache.semantic.contracts import (
    AnswerStore,
    Decision,
    EncoderBusy,
    History,
    PolicyState,
    Proposal,
    SharedStoreUnavailable,
    StoredAnswer,
)
from policies.cache.semantic.learning.comparators import AnswerVerdict
from policies.cache.semantic.learning.labels import FEEDBACK_WEIGHT, LabelSource
from policies.cache.semantic.learning.teacher import SCOPE_CHARS, scope_of_id
from policies.cache.semantic.lookup import LookupResult
from policies.cache.semantic.question import Ineligible
from policies.cache.semantic.semantic import SemanticCache, ServedAnswer

_PAGE = 1000


class Administration:
    """One for each policy in force; `stages` are its routes' semantic caches, which share `answers`."""

    def __init__(self, answers: AnswerStore, stages: Mapping[str, SemanticCache]) -> None:
        self._answers = answers
        self._stages = stages

    @property
    def stages(self) -> Mapping[str, SemanticCache]:
        """The semantic cache of each route that has one."""
        return self._stages

    @property
    def answers(self) -> AnswerStore:
        """Where entries are kept."""
        return self._answers

    async def entries(self, count: int, *, after: str | None = None, **where: str | None) -> list[dict[str, Any]]:
        """Up to `count` entries in the order of their ids, from behind `after` on.

        `where` is the `scope` (as entries show it), `tag` and `model` that they must have; all that is given.
        Raises: StoreUnavailable.
        """
        return [_shown(answer, history) for answer, history in await self._listing(count, after, **where)]

    async def entry(self, id: str) -> dict[str, Any] | None:
        """One entry, and what was answered with it."""
        found = await self._find(id)
        return {**_shown(*found), "answer": text_of(found[0].entry)} if found is not None else None

    async def delete(self, id: str) -> bool:
        """Delete one entry; False where there is none of that id."""
        found = await self._find(id)
        if found is not None:
            self._forget([found])
        return found is not None

    async def delete_where(self, **where: str | None) -> int:
        """Delete all entries that `entries` would list; how many these were. Raises: StoreUnavailable."""
        num_deleted = 0
        after = None
        while found := await self._listing(_PAGE, after, **where):
            self._forget(found)
            num_deleted += len(found)
            after = found[-1][0].id
        return num_deleted

    async def feedback(self, *, is_right: bool, entry: str | None, request_id: str | None) -> dict[str, Any] | None:
        """Take in what people say of an answer; None where neither the entry nor the request is known."""
        given, stage = self._given(request_id=request_id, entry=entry)
        entry = given.proposal.candidate.id if given is not None else entry
        scope = given.scope if given is not None else scope_of_id(entry or "")
        if entry is None or scope is None:
            return None
        is_there = await self._find(entry) is not None
        if not is_there and given is None:
            return None
        verdict = AnswerVerdict.SAME if is_right else AnswerVerdict.DIFFERENT
        if is_there:
            good, bad = (FEEDBACK_WEIGHT, 0.0) if is_right else (0.0, FEEDBACK_WEIGHT)
            self._answers.record(scope, entry, good=good, bad=bad)
        if given is not None and stage is not None:
            given.learning.settle(
                given.proposal,
                float(is_right),
                is_label=True,
                matters=True,
                weight=1.0,
                served_at=given.decision.score,
            )
            stage.tally.labels[LabelSource.FEEDBACK, verdict] += 1
            stage.tally.wrong_hits += not is_right
        return {"object": "cache.feedback", "entry": entry, "ok": is_right, "learned": given is not None}

    def served(self, request_id: str) -> dict[str, Any] | None:
        """Why a request was answered from an entry; None where that is not known, or not any more."""
        for route, stage in self._stages.items():
            given = stage.served(request_id)
            if given is not None:
                candidate = given.proposal.candidate
                return {
                    "object": "cache.served",
                    "route": route,
                    "text": candidate.text,
                    "similarity": round(candidate.similarity, 4),
                    "answer_id": candidate.answer_id,
                    **_history(candidate.history),
                    "proposal": _proposed(given.proposal),
                    "decision": _state(given.decision),
                }
        return None

    def policies(self) -> list[dict[str, Any]]:
        """What each decision has learned, by route and tenant."""
        return [
            {"route": route, "tenant": learning.name, "in_doubt": learning.is_in_doubt, **_state(learning.state())}
            for route, stage in self._stages.items()
            for learning in stage.book.all()
        ]

    async def explain(self, call: Call) -> dict[str, Any]:
        """What would become of a call of a route that has a semantic cache. Nothing is served, counted or asked."""
        stage = self._stages[call.route]
        said: dict[str, Any] = {"object": "cache.explanation", "route": call.route, "eligible": False}
        question = stage.read(call)
        if isinstance(question, Ineligible):
            return {**said, "reason": question.value}
        said |= {"eligible": True, "group": question.group.hex(), "text": question.text}
        try:
            looked = await stage.rehearse(call, question)
        except EncoderBusy:
            return {**said, "reason": "encoder_busy"}
        except TimeoutError:
            return {**said, "reason": "too_slow"}
        return {**said, **_explained(looked)}

    async def _listing(
        self, count: int, after: str | None, *, scope: str | None, tag: str | None, model: str | None
    ) -> Sequence[tuple[StoredAnswer, History]]:
        wanted = scope_of_id(f"{scope}_") if scope is not None else None
        behind = scope_of_id(after) if after is not None else None
        if (wanted is None) != (scope is None) or (behind is None) != (after is None):
            return []
        place = (behind, after) if behind is not None and after is not None else None
        try:
            return await self._answers.listing(wanted, count, tag=tag, model=model, after=place)
        except SharedStoreUnavailable as error:
            raise StoreUnavailable(str(error) or "the store of the semantic cache does not answer") from error

    async def _find(self, id: str) -> tuple[StoredAnswer, History] | None:
        scope = scope_of_id(id)
        found = await self._answers.get(scope, [id]) if scope is not None else []
        return found[0] if found else None

    def _forget(self, found: Sequence[tuple[StoredAnswer, History]]) -> None:
        spaces = {id(stage.space): stage.space for stage in self._stages.values()}
        for answer, _ in found:
            self._answers.delete(answer.question.scope, [answer.id])
            for space in spaces.values():
                space.forget(answer.question, [answer.id])

    def _given(
        self, *, request_id: str | None, entry: str | None
    ) -> tuple[ServedAnswer, SemanticCache] | tuple[None, None]:
        for stage in self._stages.values():
            given = stage.take_served(request_id=request_id, entry=entry)
            if given is not None:
                return given, stage
        return None, None


def _shown(answer: StoredAnswer, history: History) -> dict[str, Any]:
    return {
        "object": "cache.entry",
        "id": answer.id,
        "scope": answer.id[:SCOPE_CHARS],
        "group": answer.question.group.hex(),
        "text": answer.question.text,
        "answer_id": answer.answer_id,
        "model": answer.model,
        "owner": answer.owner,
        "tags": list(answer.tags),
        "created": round(answer.entry.created),
        "expires": round(answer.expires),
        "bytes": len(answer.entry.body),
        "confirmed_by_other": answer.confirmed_by_other,
        **_history(history),
    }


def _explained(looked: LookupResult) -> dict[str, Any]:
    candidates = [
        {"entry": answer.id, "text": answer.question.text, "similarity": round(similarity, 4), **_history(history)}
        | {"answer_id": answer.answer_id}
        for answer, history, similarity in looked.found
    ]
    said: dict[str, Any] = {"reason": looked.reason, "candidates": candidates, "proposal": None, "decision": None}
    if looked.proposal is not None:
        said["proposal"] = _proposed(looked.proposal)
    if looked.decision is not None:
        said["decision"] = _state(looked.decision)
    return said


def _proposed(proposal: Proposal) -> dict[str, Any]:
    features = [round(value, 4) for value in proposal.features]
    return {"entry": proposal.candidate.id, "features": features, "guarded": proposal.guarded}


def _history(history: History) -> dict[str, Any]:
    return {"good": history.good, "bad": history.bad, "served": history.served}


def _state(state: PolicyState | Decision) -> dict[str, Any]:
    return {name: _finite(value) for name, value in msgspec.structs.asdict(state).items()}


def _finite(value: Any) -> Any:
    """JSON has no infinity: a threshold that nothing reaches is null."""
    if isinstance(value, float):
        return round(value, 6) if abs(value) < float("inf") else None
    return value
