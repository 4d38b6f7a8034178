"""Whether drawn answers keep their distribution by probes: chi-square over the first three tokens.

    python -m tests.benchmarks.engine.probed_distribution [--runs 20000]

A target that draws each token by a law of eight tokens and the one before; so many answers alone and as many by probes
with the likeliest continuation as draft. Triples that are rare are counted together. Then the same with faults planted
into the verdicts, each of which has to be found.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

from backends.clock import SystemClock
from backends.drafts.answer_writer import TokenizerWords
from backends.engine.text.tokenizer import Tokenizer
from backends.operations import Operation
from backends.protocol import Backend, Call
from policies.speculation.exact import ExactSpeculation
from policies.speculation.rounds.probes import Probes
from policies.speculation.rounds.verdicts import Said
from policies.speculation.settings import ExactPolicy
from tests.support.calls import event_values, make_call, read_all
from tests.support.engine.chi_square import p_of
from tests.support.policy import drafting
from tests.support.policy.drafting import AlwaysOn, FakeDraft
from tests.support.policy.probed_target import PROMPT, ProbedTarget

_LEAST_P = 0.001
_NUM_TOKENS = 4
"""Of an answer: the first three are compared."""
Triple = tuple[str, ...]
_FOLDER = Path(str(resources.files("backends.engine.demo_models"))) / "target"


class _Law:
    """Of eight letters, each by the one before."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.letters = [tokenizer.encode(letter, add_special_tokens=False)[-1] for letter in "ABCDEFGH"]
        random = Random(1)
        self._weights = {token: [random.random() ** 3 for _ in self.letters] for token in (*self.letters, PROMPT[-1])}

    def draw(self, before: int, random: Random) -> int:
        """The next token."""
        return random.choices(self.letters, self._weights[before])[0]

    def likeliest(self, before: int) -> int:
        """What a good draft says."""
        weights = self._weights[before]
        return self.letters[weights.index(max(weights))]


class _DrawingTarget(ProbedTarget):
    """Draws each answer, and each verdict. `is_faulty`: it uses its noise of a call for all prompts of it."""

    def __init__(self, tokenizer: Tokenizer, law: _Law, seed: int) -> None:
        super().__init__(tokenizer, [])
        self._law = law
        self._random = Random(seed)
        self._seed = 0
        self.is_faulty = False

    def _verdict(self, index: int, prompt: list[int]) -> dict[str, Any]:
        if not index:
            self._seed = self._random.getrandbits(32)
        noise = Random(self._seed) if self.is_faulty else self._random
        said = prompt[len(PROMPT) :]
        token = self._law.draw(said[-1] if said else PROMPT[-1], noise)
        return {"index": index, "token_ids": [token], "finish_reason": "length"}

    def events(self, call: Call, known: int) -> list[bytes]:
        assert call.body is not None
        said = call.body["prompt"][len(PROMPT) :] if call.operation is Operation.COMPLETION else []
        while len(said) < _NUM_TOKENS:
            said = [*said, self._law.draw(said[-1] if said else PROMPT[-1], self._random)]
        self.answer = said
        return super().events(call, known)


async def _drawn(target: Backend, runs: int) -> Counter[Triple]:
    counts: Counter[Triple] = Counter()
    for _ in range(runs):
        call = make_call(stream=True, extra={"max_tokens": _NUM_TOKENS, "temperature": 1})
        values = event_values(await read_all(await target.send(call)))
        text = "".join(choice["delta"].get("content") or "" for value in values for choice in value["choices"])
        counts[tuple(text.split() if " " in text else text)[:3]] += 1
    return counts


def _one_too_many(draft: Sequence[int], said: Said) -> Said:
    """The first guess that is not what was drawn is taken all the same."""
    place = len(said.tokens) - 1
    return Said([*said.tokens[:-1], draft[place]], said.ends) if place < len(draft) else said


def _draft_goes_on(draft: Sequence[int], said: Said) -> Said:
    """Behind guesses that were right stands what the draft would say, not what was drawn."""
    return Said([*said.tokens[:-1], draft[0]], said.ends) if len(said.tokens) > 1 else said


@contextmanager
def _planted(fault: Any) -> Iterator[None]:
    verify = Probes.verify

    async def broken(self: Probes, text: Sequence[int], draft: Sequence[int]) -> Said:
        said = await verify(self, text, draft)
        return said if fault is None else fault(draft, said)

    Probes.verify = broken  # type: ignore[method-assign]
    try:
        yield
    finally:
        Probes.verify = verify  # type: ignore[method-assign]


async def _compare(runs: int) -> bool:
    tokenizer = Tokenizer(_FOLDER)
    law = _Law(tokenizer)

    def guess(known: list[int], most: int) -> list[int]:
        said = known[len(PROMPT) - len(drafting.PROMPT) :]
        for _ in range(most):
            said = [*said, law.likeliest(said[-1] if said else PROMPT[-1])]
        return said[len(said) - most :]

    async def probed(seed: int, *, is_faulty: bool = False) -> tuple[Counter[Triple], int]:
        target, draft = _DrawingTarget(tokenizer, law, seed), FakeDraft(guess, step_s=0.0)
        target.is_faulty = is_faulty
        policy = ExactPolicy(mode="exact", draft="draft", verify=("probes",), tokenizer=str(_FOLDER))
        stage = ExactSpeculation(target, policy, draft, {"target": target}, SystemClock(), TokenizerWords(tokenizer))
        assert stage.tokens is not None
        stage.tokens.known.add("target")
        stage.controllers["target"] = AlwaysOn()
        counts = await _drawn(stage, runs)
        await stage.aclose()
        return counts, target.num_probes

    alone = await _drawn(_DrawingTarget(tokenizer, law, 1), runs)
    counts, num_probes = await probed(2)
    p, freedom = p_of(alone, counts)
    is_right = p > _LEAST_P and num_probes > 0
    print(f"by probes: p {p:.3f} of {freedom} degrees of freedom, {num_probes} rounds", flush=True)
    faults = {"one too many": _one_too_many, "the draft goes on": _draft_goes_on, "noise used twice": None}
    for name, fault in faults.items():
        with _planted(fault):
            counts, _ = await probed(3, is_faulty=fault is None)
        p, _ = p_of(alone, counts)
        is_right &= p < _LEAST_P
        print(f"planted, {name}: p {p:.2g}, {'found' if p < _LEAST_P else 'NOT FOUND'}", flush=True)
    return is_right


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20_000, help="alone, and again by probes (default 20000)")
    return 0 if asyncio.run(_compare(parser.parse_args().runs)) else 1


if __name__ == "__main__":
    sys.exit(main())
