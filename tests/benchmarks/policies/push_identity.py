"""Whether answers with a draft are the target's own, whatever the draft says: the package's models, in one process.

    python -m tests.benchmarks.policies.push_identity [--prompts 1000] [--drafts good,wrong] [--verify session]

Held-out prompts of the test models, eight at a time, float32: the target alone, then with each draft, always on.
Text, number of tokens and reason of the end are compared, greedily and drawn with a seed each. By rounds, the target is
another process, over HTTP; with `--url` another server of the folder of `slipstream-target`, such as vLLM (greedily).
By probes prompts are completions of token ids, and those of our engine are greedy: answers with a seed are not probed.
`--verify suffix_logprobs` asks chats of a server that answers as SGLang does, with our engine behind it; greedily.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import structs

from backends.clock import SystemClock
from backends.drafts.answer_writer import TokenizerWords
from backends.engine.demo_models.generator import held_out_conversation
from backends.engine.text.tokenizer import Tokenizer
from backends.errors import UpstreamCut
from backends.operations import Operation
from backends.protocol import Backend, Call, Reply
from backends.registry import Registry
from backends.stream import Stream
from policies.speculation.exact import ExactSpeculation
from policies.speculation.settings import WRITTEN, ExactPolicy, VerifyMethod
from policies.stage import Stage
from tests.support.calls import event_values, make_call, read_all
from tests.support.gateway import start_gateway
from tests.support.policy.drafting import AlwaysOn, FakeDraft
from tests.support.servers.sglang_server import SglangServer

_AT_ONCE = 8
_FOLDER = Path(str(resources.files("backends.engine.demo_models"))) / "target"
_TARGET = """
version: 1
backends:
  model: {type: engine, model: slipstream-target, device: cpu, dtype: float32, threads: 1, speculate: "off"}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: model}]}]
"""
_DEADLINE_S = 120.0


class _Named(Stage):
    """Says who has answered, as a pool does."""

    async def send(self, call: Call) -> Reply:
        call.facts.backend = self.name
        return await self._inner.send(call)


class _Dying(Stage):
    """Breaks off after three pieces."""

    async def send(self, call: Call) -> Reply:
        reply = await self._inner.send(call)
        assert reply.stream is not None
        return Reply(reply.status, reply.headers, stream=Stream(_Short(reply.stream)))


class _Short:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._left = 3

    async def read(self) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise UpstreamCut("the draft has died")
        return await self._stream.read()

    async def aclose(self) -> None:
        await self._stream.aclose()


_Prompt = list[Any]
"""Messages, or token ids."""


class _Told(NamedTuple):
    text: str
    num_tokens: int
    finish_reason: str | None


def _engine(name: str) -> Backend:
    kind = Registry().kind("engine")
    settings = {"model": f"slipstream-{name}", "device": "cpu", "dtype": "float32", "threads": 1, "speculate": "off"}
    return kind.build(name, kind.config.model_validate(settings), SystemClock())


def _target(url: str | None) -> _Named:
    """The large model, in this process or behind that URL."""
    if url is None:
        return _Named(_engine("target"))
    kind = Registry().kind("openai")
    settings = {"base_url": url, "root_paths": ["/generate"]}
    return _Named(kind.build("target", kind.config.model_validate(settings), SystemClock()))


async def _ask(backend: Backend, prompt: _Prompt, asked: dict[str, Any]) -> tuple[_Told, int]:
    extra = {"max_tokens": 80, "stream_options": {"include_usage": True}, **asked}
    extra["model"] = "slipstream-target"
    call = make_call(stream=True, extra=extra, include_usage=True, deadline=time.monotonic() + _DEADLINE_S)
    assert call.body is not None
    if isinstance(prompt[0], int):
        body = {name: value for name, value in call.body.items() if name != "messages"} | {"prompt": prompt}
        call = structs.replace(call, operation=Operation.COMPLETION, path="/completions", body=body)
    else:
        body = {**call.body, "messages": prompt}
    call = structs.replace(call, model=extra["model"], body=body, raw=msgspec.json.encode(body))
    values = event_values(await read_all(await backend.send(call)))
    choices = [choice for value in values for choice in value["choices"]]
    text = "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)
    reason = next((choice["finish_reason"] for choice in choices if choice["finish_reason"]), None)
    accepted = call.facts.speculation.accepted if call.facts.speculation is not None else 0
    return _Told(text, values[-1]["usage"]["completion_tokens"], reason), accepted


async def _ask_all(
    backend: Backend, prompts: Sequence[_Prompt], asked: Sequence[dict[str, Any]]
) -> tuple[list[_Told], int]:
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(prompt: _Prompt, fields: dict[str, Any]) -> tuple[_Told, int]:
        async with places:
            return await _ask(backend, prompt, fields)

    found = await asyncio.gather(*(one(*each) for each in zip(prompts, asked, strict=True)))
    return [told for told, _ in found], sum(accepted for _, accepted in found)


def _random(known: list[int], most: int) -> list[int]:
    return [random.Random(len(known)).randrange(880) for _ in range(most)]


async def _main(given: argparse.Namespace) -> int:
    rng = random.Random(given.seed)
    prompts: list[_Prompt] = [held_out_conversation(rng).messages()[:-1] for _ in range(given.prompts)]
    if given.verify == "probes":
        tokenizer = Tokenizer(_FOLDER)
        prompts = [tokenizer.apply_chat_template(messages) for messages in prompts]
    ways: dict[str, list[dict[str, Any]]] = {"greedy": [{"temperature": 0}] * len(prompts)}
    if not (given.greedy_only or given.verify in WRITTEN):
        ways["drawn"] = [{"temperature": 0.8, "seed": number} for number in range(len(prompts))]
    async with AsyncExitStack() as stack:
        url = given.url
        if url is None and given.verify != "push":
            engine = (await stack.enter_async_context(start_gateway(_TARGET))).url
            url = f"{engine}/v1"
            if given.verify == "suffix_logprobs":
                url = (await stack.enter_async_context(SglangServer(engine, Tokenizer(_FOLDER)))).base_url
        return await _compare(given, prompts, ways, url)


async def _compare(
    given: argparse.Namespace,
    prompts: Sequence[_Prompt],
    ways: dict[str, list[dict[str, Any]]],
    url: str | None,
) -> int:
    words = TokenizerWords(Tokenizer(_FOLDER)) if given.verify in WRITTEN else None
    target, small = _target(url), _engine("draft")
    await target.open()
    await small.open()
    wrong = FakeDraft(lambda known, most: [len(known) % 256] * most, step_s=0.0)
    drafts: dict[str, Any] = {
        "good": small,
        "random": FakeDraft(_random, step_s=0.0),
        "wrong": wrong,
        "dying": _Dying(small),
    }
    num_other = 0
    for way, asked in ways.items():
        alone, _ = await _ask_all(target, prompts, asked)
        for name in given.drafts:
            leaf: Any = target._inner
            folder = str(_FOLDER) if words is not None else None
            policy = ExactPolicy(mode="exact", draft=name, verify=(given.verify,), tokenizer=folder)
            async with aclosing(
                ExactSpeculation(target, policy, drafts[name], {"target": leaf}, SystemClock(), words)
            ) as stage:
                stage.controllers["target"] = AlwaysOn()
                if stage.tokens is not None:
                    stage.tokens.known.add("target")
                began = time.monotonic()
                found, accepted = await _ask_all(stage, prompts, asked)
                other = sum(one != two for one, two in zip(found, alone, strict=True))
                tokens = sum(told.num_tokens for told in found)
                print(
                    f"{way:6} {name:7} {len(prompts) - other:5} of {len(prompts)} the same; {accepted} of {tokens} "
                    f"tokens were guessed; {time.monotonic() - began:.0f} s",
                    flush=True,
                )
                num_other += other
            # The stage has closed both.
            target, small = _target(url), _engine("draft")
            await target.open()
            await small.open()
            drafts["good"], drafts["dying"] = small, _Dying(small)
    await target.aclose()
    await small.aclose()
    return 1 if num_other else 0


def main() -> int:
    """Compare and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--prompts", type=int, default=1000, help="how many (default 1000)")
    options.add_argument("--drafts", type=lambda text: text.split(","), default=["good", "random", "wrong", "dying"])
    options.add_argument("--greedy-only", action="store_true", help="leave out the drawn answers")
    options.add_argument("--verify", choices=get_args(VerifyMethod), default="push", help="how (default push)")
    options.add_argument("--url", help="of another target than one that is started")
    options.add_argument("--seed", type=int, default=7, help="of the prompts")
    return asyncio.run(_main(options.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
