"""Fault 17: questions that look alike to the semantic cache and are not, up to vectors that collide on purpose."""

from __future__ import annotations

import json
from importlib.util import find_spec

from gateway.selftest.answers import chat_body, embeddings_body
from gateway.selftest.bench import Bench, ask_way
from gateway.selftest.check import Check
from gateway.selftest.run import DidNotStart
from gateway.selftest.upstream import Lie, ReceivedRequest
from gateway.selftest.verdict import CheckOutcome, failed, partial, passed, skipped

_MAX_WRONG = 0.01
_TEMPLATES = (
    "Is it {not_}allowed to take {number} mg of drug {name}?",
    "How many days does parcel {name} {not_}need for {number} km?",
    "May account {name} {not_}pay {number} dollars?",
)
_DIMENSIONS = 16
_NEEDED = ("numpy", "faiss")


async def collisions(bench: Bench) -> CheckOutcome:
    """Every question gets the same vector and another answer: hardly any may be served another one's."""
    missing = [module for module in _NEEDED if find_spec(module) is None]
    if missing:
        return skipped(f"{missing[0]} is not installed", "pip install 'slipstream-gateway[semantic]'")
    way = bench.subject.way
    count = bench.count(90, 2000)
    wrong: list[str] = []
    vector = [1.0] + [0.0] * (_DIMENSIONS - 1)

    def lie(received: ReceivedRequest) -> Lie:
        request = json.loads(received.body)
        if received.path.endswith("/embeddings"):
            inputs = request["input"] if isinstance(request["input"], list) else [request["input"]]
            return Lie(pieces=(embeddings_body(request, [vector] * len(inputs)),))
        return Lie(pieces=(chat_body((f"about {request['messages'][-1]['content']}",)),))

    for upstream in bench.own.values():
        upstream.plan = lie
    encoder = {"type": "openai", "backend": way.backends[0], "model": "vectors", "dimension": _DIMENSIONS}
    semantic = {"mode": "verified", "max_wrong_hit_rate": _MAX_WRONG, "encoder": encoder, "volatile_words": []}
    try:
        async with bench.gateway(bench.policy(way, cache={"scope": "tenant", "semantic": semantic})) as child:
            for number in range(count):
                question = _TEMPLATES[number % len(_TEMPLATES)].format(
                    not_="not " if number % 2 else "", number=number // 6, name=chr(65 + number % 26)
                )
                answer = await ask_way(child, way, question, temperature=0)
                if answer.status == 200 and answer.text() != f"about {question}":
                    wrong.append(question)
                elif answer.status != 200:
                    return failed(f"status {answer.status}", "the semantic cache made a call fail", "please report it")
    except DidNotStart as error:
        return skipped(f"a gateway with a semantic cache does not start here: {str(error)[:200]}")
    measured = f"{len(wrong)} of {count} served wrongly"
    if len(wrong) > max(1, 3 * _MAX_WRONG * count):
        return failed(
            measured, f"more than three times the bound of {_MAX_WRONG:.0%}", "mode: observe until it is found"
        )
    if len(wrong) > _MAX_WRONG * count:
        return partial(measured, f"over the bound of {_MAX_WRONG:.0%}, within chance of so few questions")
    return passed(measured)


CHECKS = (Check("17", "questions that only look alike: not confused", collisions),)
