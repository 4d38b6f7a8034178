"""Verdicts of a target that knows no drafts: a completions call with a prompt of token ids for each place of a guess.

    text        -> a token    text + d1 -> a token    text + d1 d2 -> a token ...

Each is drawn by the target itself, as it would draw behind that text. Those whose text has come true count.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from policies.speculation.rounds.verdicts import Completion, Completions, Malformed, Said, checked

_decode = msgspec.json.Decoder(Completion).decode


class Probes(Completions):
    """Of one answer."""

    async def verify(self, text: Sequence[int], draft: Sequence[int]) -> Said:
        """See `Verdicts.verify`."""
        prompts = [[*text, *draft[:length]] for length in range(len(draft) + 1)]
        self.num_prompt_tokens += sum(map(len, prompts))
        body = {"prompt": prompts, "max_tokens": 1, **self._sampling, "stream": False, "return_token_ids": True}
        async with self._asked(body) as reply:
            found = reply.body if reply.body is not None else b""
        try:
            choices = {choice.index: choice for choice in _decode(found).choices}
        except msgspec.DecodeError:
            raise Malformed("the target's verdict cannot be read") from None
        if choices.keys() != set(range(len(prompts))):
            raise Malformed(f"the target answers {len(prompts)} probes with {len(choices)} choices")
        said: list[int] = []
        for place in range(len(prompts)):
            tokens, ends = checked(choices[place], most=1)
            said += tokens
            if ends or place == len(draft) or tokens[0] != draft[place]:
                return Said(said, ends)
        raise AssertionError("the last place returns")
