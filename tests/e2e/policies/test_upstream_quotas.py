"""Several keys of a backend through a whole gateway: what clients see, what metrics say, and that no key is shown."""

from __future__ import annotations

import httpx

from tests.support.gateway import start_gateway
from tests.support.servers.quota_server import Quota, QuotaServer

KEYS = {"A": "sk-upstream-a-0123456789", "B": "sk-upstream-b-0123456789"}
POLICY = """
version: 1
backends: {{up: {{type: openai, base_url: "{url}", api_keys: ["env:A", "env:B"]}}}}
defaults: {{retry: {{attempts: 0}}}}
routes: [{{name: all, match: {{models: ["*"]}}, backends: [{{ref: up}}]}}]
"""
CALL = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


async def test_keys_are_chosen_and_counted_by_their_place() -> None:
    """One is revoked in the middle: every call is answered without a retry, and the metrics say what happened."""
    quotas = {KEYS["A"]: Quota(requests=60), KEYS["B"]: Quota(requests=30)}
    async with QuotaServer(quotas) as server:
        policy = POLICY.format(url=server.base_url)
        async with (
            start_gateway(policy, environ=KEYS) as gateway,
            httpx.AsyncClient(base_url=gateway.url, verify=False) as client,
        ):
            first = [await client.post("/v1/chat/completions", json=CALL) for _ in range(30)]
            split = server.answered()
            quotas[KEYS["B"]].is_revoked = True
            then = [await client.post("/v1/chat/completions", json=CALL) for _ in range(20)]
            metrics = (await client.get("/metrics")).text

    assert {answer.status_code for answer in first + then} == {200}
    assert abs(split[KEYS["A"]] - 20) <= 2
    assert server.statuses() == {200: 50, 401: 1}
    assert 'slipstream_upstream_key_refusals_total{backend="up",key="2",reason="rejected"} 1.0' in metrics
    assert 'slipstream_upstream_key_out{backend="up",key="2"} 1.0' in metrics
    assert 'slipstream_upstream_quota_limit{backend="up",key="1",kind="requests"} 60.0' in metrics
    assert "sk-upstream" not in metrics


async def test_used_up_quotas_are_a_429_that_says_until_when() -> None:
    """The second call is not sent."""
    async with QuotaServer({key: Quota(requests=0) for key in KEYS.values()}) as server:
        server.retry_after = lambda _: [("retry-after", "30")]
        async with (
            start_gateway(POLICY.format(url=server.base_url), environ=KEYS) as gateway,
            httpx.AsyncClient(base_url=gateway.url, verify=False) as client,
        ):
            refused = await client.post("/v1/chat/completions", json=CALL)
            unsent = await client.post("/v1/chat/completions", json=CALL)

    assert (refused.status_code, unsent.status_code) == (429, 429)
    assert refused.headers["retry-after"] == "30"
    assert 28 <= int(unsent.headers["retry-after"]) <= 30
    assert unsent.json()["error"]["code"] == "upstream_quota_exhausted"
    assert server.statuses() == {429: 2}
