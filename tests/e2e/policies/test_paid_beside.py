"""What a gateway asks because of a call, beside it, is paid from the budgets of who called."""

from __future__ import annotations

import json

import httpx

from tests.e2e.policies.test_limits import KEYS, Limited, policy_of
from tests.support.gateway import running_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer


async def test_what_is_asked_beside_a_call_is_paid_from_its_budget(openai_server: OpenAIServer) -> None:
    """The encoder of the semantic cache is another model, and a dear one: after one question there is nothing left."""
    encoder = "{type: openai, backend: vectors, model: small, dimension: 8}"
    cache = f"{{exact: {{enabled: false}}, semantic: {{mode: static, encoder: {encoder}, encode_timeout: 5s}}}}"
    dear = "{input_per_1m: 1000, output_per_1m: 0}"
    policy = policy_of(openai_server, "budgets: [{name: cents, usd: 0.01, every: day}]").replace(
        "cache: {exact: {}}", f"cache: {cache}"
    )
    embedding = {"object": "embedding", "index": 0, "embedding": [0.5] * 8}
    answer = {"object": "list", "data": [embedding], "model": "small", "usage": {"prompt_tokens": 9}}
    async with OpenAIServer(Behaviour(body=json.dumps(answer).encode())) as vectors:
        backend = f"  vectors: {{type: openai, base_url: {vectors.base_url}, price: {dear}}}"
        policy = policy.replace("backends:\n", f"backends:\n{backend}\n", 1)
        with running_gateway(policy, environ=KEYS) as gateway:
            async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
                limited = Limited(gateway, openai_server, client)
                answered = await limited.ask(words="what is it", temperature=0)
                refused = await limited.ask(words="something else", temperature=0)

    assert (answered.status_code, refused.status_code) == (200, 429)
    assert len(openai_server.requests) == len(vectors.requests) == 1


async def test_copies_of_a_mirror_are_not_paid_by_who_was_copied(openai_server: OpenAIServer) -> None:
    """The operator tries a candidate, and a dear one: the caller's budget has what the answer cost."""
    dear = "{input_per_1m: 1, output_per_1m: 100000}"
    policy = policy_of(openai_server, "budgets: [{name: cents, usd: 0.01, every: day}]").replace(
        "cache: {exact: {}}", "mirror: {to: candidate, share: 1.0}"
    )
    async with OpenAIServer() as candidate:
        backend = f"  candidate: {{type: openai, base_url: {candidate.base_url}, price: {dear}}}"
        policy = policy.replace("backends:\n", f"backends:\n{backend}\n", 1)
        with running_gateway(policy, environ=KEYS) as gateway:
            async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
                limited = Limited(gateway, openai_server, client)
                for number in range(3):
                    assert (await limited.ask(words="what is it")).status_code == 200
                    await candidate.wait_request(number, timeout_s=10)
