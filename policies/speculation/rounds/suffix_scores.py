"""Verdicts of a target that tells what it finds likeliest at each place of a prompt: one call of one prompt a round.

    text + d1 d2 d3  ->  the likeliest at the places of d1, d2, d3, and the token that comes behind them

SGLang's own `/generate` does, from a place on that the call names, and keeps what lies before it in its prefix cache
(https://docs.sglang.io/basic_usage/sampling_params.html). The likeliest token is what a greedy target says: answers
that are drawn cannot be checked so. Whether a token ends the answer is told of the last one only, so that a guess is
cut before a special token, and such a token comes true by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from backends.protocol import Backend, Call
from policies.speculation.rounds.verdicts import Completions, Malformed, Said, is_token

_PATH = "/generate"
_Scored = tuple[float | None, int, str | None]
"""Log-probability, token, text."""


class _Ended(msgspec.Struct):
    type: str = ""


class _Meta(msgspec.Struct):
    input_top_logprobs: list[list[_Scored] | None] = []
    output_token_logprobs: list[_Scored] = []
    finish_reason: _Ended | None = None


class _Generated(msgspec.Struct):
    meta_info: _Meta


_decode = msgspec.json.Decoder(_Generated).decode


class SuffixScores(Completions):
    """Of one greedy answer. `special`: tokens that are no text, of which some end an answer."""

    def __init__(
        self, inner: Backend, call: Call, backend: str, sampling: Mapping[str, Any], special: Collection[int]
    ) -> None:
        super().__init__(inner, call, backend, sampling)
        self._special = special

    async def verify(self, text: Sequence[int], draft: Sequence[int]) -> Said:
        """See `Verdicts.verify`."""
        cut = next((place for place, token in enumerate(draft) if token in self._special), len(draft))
        draft = draft[:cut]
        likeliest, last, ends = await self._scored(text, draft)
        for place, (said, guessed) in enumerate(zip(likeliest, draft, strict=True)):
            if said == guessed:
                continue
            if said not in self._special:
                return Said([*draft[:place], said], ends=False)
            if place:
                return Said(list(draft[:place]), ends=False)
            _, last, ends = await self._scored(text, ())
            return Said([last], ends)
        return Said([*draft, last], ends)

    async def _scored(self, text: Sequence[int], draft: Sequence[int]) -> tuple[list[int], int, bool]:
        """The likeliest token at each place of the draft, the token behind it, and whether that one ends the answer."""
        self.num_prompt_tokens += len(text) + len(draft)
        greedy = {"temperature": 0, "max_new_tokens": 1, "ignore_eos": self._sampling.get("ignore_eos", False)}
        # From the last known token on: of the place that is named nothing is told, since nothing is before it.
        body = {"input_ids": [*text, *draft], "sampling_params": greedy, "stream": False, "return_logprob": True}
        body |= {"logprob_start_len": len(text) - 1, "top_logprobs_num": 1}
        async with self._asked(body, _PATH) as reply:
            try:
                told = _decode(reply.body if reply.body is not None else b"").meta_info
            except msgspec.DecodeError:
                raise Malformed("the target's verdict cannot be read") from None
        scored = told.input_top_logprobs[1:]
        if len(scored) != len(draft) or len(told.output_token_logprobs) != 1:
            raise Malformed(f"the target tells of {len(scored)} places where {len(draft)} were asked about")
        likeliest = [places[0][1] if places else -1 for places in scored]
        last = told.output_token_logprobs[0][1]
        reason = told.finish_reason.type if told.finish_reason is not None else ""
        if not all(map(is_token, (*likeliest, last))) or reason not in ("stop", "length"):
            raise Malformed("the target tells tokens that none can be, or not why it has stopped")
        return likeliest, last, reason == "stop"
