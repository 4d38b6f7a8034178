"""What a draft brings over a line, pushed or by rounds: the embedded pair over loopback HTTP, steps as long as told.

    python -m tests.benchmarks.policies.push_drafts --round-trips 0,20,80 --spoil 0,0.2 [--verify session] [--json FILE]

A target whose steps take 20 ms, a draft whose steps take 2 ms and a gateway, in a process each; a line of so many
milliseconds (both ways together) lies between gateway and target. Each prompt is asked once alone and once with the
draft, in turn; answers must be the same. Time is that after the first token. `--spoil` replaces a share of what the
draft says, and so sets its acceptance. By rounds, the formula is e t_T / (t_T + k t_D + R + h), with e and k as
counted: k are the tokens of a round that are waited for, without those said while the round before was checked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from importlib import resources
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

import httpx
import msgspec

from backends.engine.demo_models.generator import held_out_conversation
from backends.engine.text.tokenizer import Tokenizer
from tests.support.engine.paced_engine import PLUGIN, plugin_environment
from tests.support.gateway import start_gateway
from tests.support.plugin import plugin
from tests.support.servers.delay_line import DelayLine

_MODEL = """
version: 1
backends:
  model: {{type: mine, model: {model}, device: cpu, dtype: float32, threads: 1, speculate: "off", step_ms: {step_ms},
          spoil: {spoil}}}
routes: [{{name: all, match: {{models: ["*"]}}, backends: [{{ref: model}}]}}]
"""
_GATEWAY = """
version: 1
backends:
  target: {{type: openai, base_url: "http://127.0.0.1:{target}/v1"}}
  draft: {{type: openai, base_url: "http://127.0.0.1:{draft}/v1"}}
routes:
  - {{name: alone, match: {{models: [alone]}}, backends: [{{ref: target}}]}}
  - {{name: drafted, match: {{models: [drafted]}}, backends: [{{ref: target}}],
     speculative: {{mode: exact, draft: draft, verify: [{verify}]}}}}
"""


_STEPS = "slipstream_engine_steps_total"


class Answered(NamedTuple):
    """One answer: its text, its tokens, and the seconds from its first token to its end."""

    text: str
    num_tokens: int
    seconds: float
    ttft_s: float


async def _ask(client: httpx.AsyncClient, model: str, messages: list[dict[str, str]], most: int) -> Answered:
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": most, "stream": True}
    body["stream_options"] = {"include_usage": True}
    text, num_tokens, first, began = "", 0, 0.0, time.perf_counter()
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = msgspec.json.decode(line[6:])
            for choice in chunk["choices"]:
                if choice["delta"].get("content"):
                    first = first or time.perf_counter()
                    text += choice["delta"]["content"]
            if chunk.get("usage"):
                num_tokens = chunk["usage"]["completion_tokens"]
    ended = time.perf_counter()
    return Answered(text, num_tokens, ended - first, first - began)


async def _acceptance(client: httpx.AsyncClient, draft_url: str, prompts: Sequence[Any], most: int) -> float:
    """The share of the target's tokens that the draft says behind the text before them, each asked by itself."""
    tokenizer = Tokenizer(Path(str(resources.files("backends.engine.demo_models"))) / "target")
    right = asked = 0
    for messages in prompts:
        prompt = tokenizer.apply_chat_template(messages)
        body = {"model": "alone", "prompt": prompt, "temperature": 0, "max_tokens": most, "return_token_ids": True}
        answer = (await client.post("/v1/completions", json=body)).raise_for_status().json()
        tokens = answer["choices"][0]["token_ids"]
        for place, token in enumerate(tokens):
            body = {"model": "draft", "prompt": [*prompt, *tokens[:place]], "temperature": 0, "max_tokens": 1}
            body["return_token_ids"] = True
            said = (await client.post(f"{draft_url}/v1/completions", json=body)).raise_for_status().json()
            right += said["choices"][0]["token_ids"] == [token]
            asked += 1
    return right / asked


async def _overhead_ms(client: httpx.AsyncClient, target_url: str, draft_url: str, given: argparse.Namespace) -> float:
    """What a round takes beside steps and the line: a verdict of no session, and a draft's first token."""
    verdict = {"session": "none", "at": 0, "draft": []}
    draft = {"model": "draft", "prompt": list(range(3, 103)), "max_tokens": 1, "stream": True, "return_token_ids": True}
    found = []
    for url, body in ((f"{target_url}/v1/slipstream/verify", verdict), (f"{draft_url}/v1/completions", draft)):
        took = []
        for _ in range(15):
            began = time.perf_counter()
            await client.post(url, json=body)
            took.append(1e3 * (time.perf_counter() - began))
        found.append(median(took))
    return max(0.0, sum(found) - given.draft_ms)


async def _cell(given: argparse.Namespace, round_trip_ms: float, spoil: float) -> dict[str, Any]:
    rng = Random(given.seed)
    prompts = []
    while len(prompts) < given.prompts:
        talk = held_out_conversation(rng)
        if len(talk.turns[-1].answer) > given.least_chars:
            prompts.append(talk.messages()[:-1])
    async with AsyncExitStack() as stack:
        environ = plugin_environment(stack.enter_context(plugin(PLUGIN)))
        models = []
        for model, step_ms, spoiled in (("target", given.target_ms, 0), ("draft", given.draft_ms, spoil)):
            policy = _MODEL.format(model=f"slipstream-{model}", step_ms=step_ms, spoil=spoiled)
            models.append(await stack.enter_async_context(start_gateway(policy, environ=environ)))
        target, draft = models
        line = await stack.enter_async_context(DelayLine(target.port, round_trip_ms / 2e3))
        policy = _GATEWAY.format(target=line.port, draft=draft.port, verify=given.verify)
        gateway = await stack.enter_async_context(start_gateway(policy))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=120))
        for model in ("alone", "drafted", "drafted"):
            await _ask(client, model, prompts[0], 60)
        overhead_ms = await _overhead_ms(client, target.url, draft.url, given)
        acceptance = await _acceptance(client, draft.url, prompts, given.max_tokens) if given.acceptance else 0.0
        alone, drafted, num_steps = [], [], 0.0
        for messages in prompts * given.rounds:
            alone.append(await _ask(client, "alone", messages, given.max_tokens))
            before = (await target.metrics()).value(_STEPS)
            drafted.append(await _ask(client, "drafted", messages, given.max_tokens))
            # The first token has a step of its own.
            num_steps += (await target.metrics()).value(_STEPS) - before - 1
        lines = [line for line in gateway.log if line.get("speculation")]
    assert [each.text for each in alone] == [each.text for each in drafted], "an answer is another one with a draft"
    tpot = [
        1e3 * sum(each.seconds for each in found) / sum(each.num_tokens - 1 for each in found)
        for found in (alone, drafted)
    ]
    told = [line["speculation"] for line in lines]
    num_drafted, num_accepted, num_rounds, num_ahead = (
        sum(each.get(name, 0) for each in told) for name in ("drafted", "accepted", "rounds", "ahead")
    )
    formula = 0.0
    if num_rounds:
        brought, waited_for = (num_accepted + num_rounds) / num_rounds, (num_drafted - num_ahead) / num_rounds
        formula = brought * tpot[0] / (tpot[0] + waited_for * given.draft_ms + round_trip_ms + overhead_ms)
    return {
        "round_trip_ms": round_trip_ms,
        "spoil": spoil,
        "tokens": sum(each.num_tokens for each in drafted),
        "alone_ms": tpot[0],
        "drafted_ms": tpot[1],
        "speed_up": tpot[0] / tpot[1],
        "tokens_a_step": sum(each.num_tokens - 1 for each in drafted) / num_steps,
        "come_true": num_accepted / max(1, num_drafted),
        "acceptance": acceptance,
        "formula": formula,
        "overhead_ms": overhead_ms,
        "rounds": num_rounds,
        "per_round": num_drafted / max(1, num_rounds),
        "ahead": num_ahead / max(1, num_rounds),
        "ended": sorted({each.get("ended", "") for each in told}),
    }


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


async def _main(given: argparse.Namespace) -> list[dict[str, Any]]:
    cells = []
    for spoil in given.spoil:
        for round_trip_ms in given.round_trips:
            cell = await _cell(given, round_trip_ms, spoil)
            print(
                f"R {round_trip_ms:4g} ms, spoiled {spoil:4.2f}: {cell['alone_ms']:6.2f} ms a token alone, "
                f"{cell['drafted_ms']:6.2f} drafted: {cell['speed_up']:5.2f} x, "
                f"counted {cell['tokens_a_step']:.2f} tokens a step; {cell['tokens']} tokens, "
                f"{cell['come_true']:.3f} of those proposed came true {cell['ended']}"
                + (f"; the draft knows {cell['acceptance']:.3f} of the target's tokens" if given.acceptance else "")
                + (
                    f"; {cell['rounds']} rounds of {cell['per_round']:.1f}, {cell['ahead']:.1f} of them ahead, "
                    f"formula {cell['formula']:.2f} x with h = {cell['overhead_ms']:.1f} ms"
                    if cell["rounds"]
                    else ""
                ),
                flush=True,
            )
            cells.append(cell)
    return cells


def main() -> int:
    """Measure and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--round-trips", type=_numbers, default=[0.0, 20.0, 80.0], help="of the line, ms")
    options.add_argument("--spoil", type=_numbers, default=[0.0, 0.2], help="shares of the draft's tokens to replace")
    options.add_argument("--verify", choices=["push", "session"], default="push", help="how (default push)")
    options.add_argument("--target-ms", type=float, default=20.0, help="a step of the target (default 20)")
    options.add_argument("--draft-ms", type=float, default=2.0, help="a step of the draft (default 2)")
    options.add_argument("--prompts", type=int, default=12, help="how many (default 12)")
    options.add_argument("--rounds", type=int, default=1, help="how often each (default 1)")
    options.add_argument("--acceptance", action="store_true", help="ask the draft for each token of the answers too")
    options.add_argument("--least-chars", type=int, default=60, help="right answers have more (default 60)")
    options.add_argument("--max-tokens", type=int, default=160, help="of an answer (default 160)")
    options.add_argument("--seed", type=int, default=11, help="of the prompts")
    options.add_argument("--json", type=Path, help="a file for the figures")
    given = options.parse_args()
    cells = asyncio.run(_main(given))
    if given.json is not None:
        given.json.write_text(json.dumps(cells, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
