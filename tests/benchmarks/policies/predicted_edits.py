"""What predicted text brings on traffic that edits texts: the embedded target over loopback HTTP, steps of 20 ms.

    python -m tests.benchmarks.policies.predicted_edits [--prompts 8] [--step-ms 20]

`turn`: a text is changed, and its change is changed again, so the answer before is nearly the next one. `near`: the
same change of the same text is asked for in other words, with another word to put in; the semantic cache has an answer
to a near question, too far to serve. Each question goes to the target alone (which never speculates), to one that looks
up what it has read (`speculate: ngram`), and to that one with `speculative: {mode: predicted}`; the answers must be the
same. Time is that after the first token; tokens a step are counted by the target.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from random import Random
from typing import NamedTuple

import httpx

from backends.engine.demo_models.words import COLOURS, NAMES, sentences
from tests.benchmarks.policies.push_drafts import Answered, _ask
from tests.support.engine.paced_engine import PLUGIN, plugin_environment
from tests.support.gateway import Gateway, start_gateway
from tests.support.plugin import plugin

_TARGET = """
version: 1
backends:
  model: {{type: mine, model: slipstream-target, device: cpu, dtype: float32, threads: 1, speculate: "{speculate}",
          step_ms: {step_ms}, spoil: 0}}
routes: [{{name: all, match: {{models: ["*"]}}, backends: [{{ref: model}}]}}]
"""
_GATEWAY = """
version: 1
backends:
  off: {{type: openai, base_url: "http://127.0.0.1:{off}/v1"}}
  ngram: {{type: openai, base_url: "http://127.0.0.1:{ngram}/v1"}}
routes:
  - {{name: alone, match: {{models: [alone]}}, backends: [{{ref: off}}]}}
  - {{name: lookup, match: {{models: [lookup]}}, backends: [{{ref: ngram}}]}}
  - {{name: turn, match: {{models: [turn]}}, backends: [{{ref: ngram}}], speculative: {{mode: predicted}}}}
  - name: near
    match: {{models: [near]}}
    backends: [{{ref: ngram}}]
    speculative: {{mode: predicted, sources: [cache], near: 0.7}}
    cache: {{semantic: {{mode: static, threshold: 1.0, encode_timeout: 10s, search_timeout: 2s}}}}
"""
_STEPS = "slipstream_engine_steps_total"


class Question(NamedTuple):
    """What is asked first, and then with its answer in the conversation, or as near to it."""

    first: str
    second: str


def _questions(rng: Random, number: int) -> list[Question]:
    found = []
    while len(found) < number:
        text = " ".join(sentences(rng, 6))
        present = [word for word in (*NAMES, *COLOURS) if word in text.replace(".", "").split()]
        if not present:
            continue
        old = rng.choice(present)
        kind = NAMES if old in NAMES else COLOURS
        one, other = rng.sample([word for word in kind if word != old], 2)
        found.append(Question(*(f"Replace {old} with {new}: {text}" for new in (one, other))))
    return found


class _Way(NamedTuple):
    model: str
    target: Gateway


async def _measure(
    client: httpx.AsyncClient, way: _Way, talks: list[list[dict[str, str]]], most: int
) -> list[Answered]:
    return [await _ask(client, way.model, messages, most) for messages in talks]


async def _case(
    client: httpx.AsyncClient, kind: str, targets: dict[str, Gateway], questions: list[Question], most: int
) -> float:
    firsts = [[{"role": "user", "content": question.first}] for question in questions]
    seconds = [[{"role": "user", "content": question.second}] for question in questions]
    answers = await _measure(client, _Way("near" if kind == "near" else "alone", targets["off"]), firsts, most)
    if kind == "turn":
        seconds = [
            [*first, {"role": "assistant", "content": answer.text}, *second]
            for first, answer, second in zip(firsts, answers, seconds, strict=True)
        ]
    tpot, texts = {}, {}
    for model, target in (("alone", "off"), ("lookup", "ngram"), (kind, "ngram")):
        before = (await targets[target].metrics()).value(_STEPS)
        found = await _measure(client, _Way(model, targets[target]), seconds, most)
        steps = (await targets[target].metrics()).value(_STEPS) - before - len(found)
        num_tokens = sum(each.num_tokens - 1 for each in found)
        tpot[model], texts[model] = sum(each.seconds for each in found) / num_tokens, [each.text for each in found]
        print(
            f"{kind:5} {model:7} {1e3 * tpot[model]:6.2f} ms a token, {num_tokens / steps:5.2f} tokens a step, "
            f"{tpot['alone'] / tpot[model]:5.2f} x; {num_tokens} tokens",
            flush=True,
        )
    assert texts["alone"] == texts["lookup"] == texts[kind], "an answer is another one"
    return tpot["alone"] / tpot[kind]


async def _main(given: argparse.Namespace) -> bool:
    questions = _questions(Random(given.seed), 2 * given.prompts)
    async with AsyncExitStack() as stack:
        environ = plugin_environment(stack.enter_context(plugin(PLUGIN)))
        targets = {}
        for speculate in ("off", "ngram"):
            policy = _TARGET.format(speculate=speculate, step_ms=given.step_ms)
            targets[speculate] = await stack.enter_async_context(start_gateway(policy, environ=environ))
        policy = _GATEWAY.format(**{name: target.port for name, target in targets.items()})
        gateway = await stack.enter_async_context(start_gateway(policy))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=240))
        for model in ("alone", "lookup"):
            await _ask(client, model, [{"role": "user", "content": "hello"}], 20)
        gains = []
        for number, kind in enumerate(given.kinds.split(",")):
            part = questions[number * given.prompts : (number + 1) * given.prompts]
            gains.append(await _case(client, kind, targets, part, given.max_tokens))
    return all(gain >= given.least for gain in gains)


def main() -> int:
    """Measure and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--kinds", default="turn,near")
    options.add_argument("--prompts", type=int, default=8, help="of each kind (default 8)")
    options.add_argument("--step-ms", type=float, default=20.0, help="a step of the target (default 20)")
    options.add_argument("--max-tokens", type=int, default=160, help="of an answer (default 160)")
    options.add_argument("--least", type=float, default=1.8, help="what is asked (default 1.8)")
    options.add_argument("--seed", type=int, default=3, help="of the texts")
    return 0 if asyncio.run(_main(options.parse_args())) else 1


if __name__ == "__main__":
    sys.exit(main())
