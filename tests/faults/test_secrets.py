"""Canaries in every place where a secret or a prompt can be: none of them turns up in logs, metrics or errors."""

from __future__ import annotations

import json

from tests.support.faults import CHAT, CaseServer, policy
from tests.support.gateway import start_gateway
from tests.support.http_client import Answer, HttpClient, chat_body, request_bytes
from tests.support.servers.openai_server import Behaviour, error

_CLIENT_KEY = "sk-canary-client-7f3a"
_WRONG_KEY = "sk-canary-wrong-91bc"
_UPSTREAM_KEY = "sk-canary-upstream-55de"
_PROMPT = "canary-prompt-c0ffee"
_COOKIE = "canary-cookie-1234"
_QUERY = "canary-query-9876"
_CANARIES = (_CLIENT_KEY, _WRONG_KEY, _UPSTREAM_KEY, _PROMPT, _COOKIE, _QUERY)
_ECHO = (
    f'{{"error":{{"message":"Incorrect API key provided: {_UPSTREAM_KEY}","type":"auth","param":null,"code":null}}}}'
)
_PAGE = f"<html>{_UPSTREAM_KEY} {_PROMPT}</html>"
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'
# A kept connection that is closed without an answer counts as stale, and another is tried: so this comes first.
_ANSWERS = (
    Behaviour(raw=b""),
    Behaviour(body=b"{}"),
    Behaviour(status=401, body=_ECHO.encode()),
    Behaviour(status=502, body=_PAGE.encode(), content_type="text/html"),
    Behaviour(body=_PAGE.encode()),
    Behaviour(raw=f"{_UPSTREAM_KEY} is no HTTP\r\n\r\n".encode()),
    Behaviour(events=(_EVENT, _EVENT), cut_after_events=1),
    Behaviour(stall_before_head=True),
    error(500),
)


def _requests() -> list[bytes]:
    authorization = ("authorization", f"Bearer {_CLIENT_KEY}")
    fields = [authorization, ("cookie", f"session={_COOKIE}"), ("x-api-key", _WRONG_KEY)]
    good = chat_body(_PROMPT, stream=True)
    path = f"{CHAT}?key={_QUERY}"
    return [
        *(request_bytes(path, good, fields) for _ in _ANSWERS),
        request_bytes(CHAT, good, [("authorization", f"Bearer {_WRONG_KEY}")]),
        request_bytes(CHAT, good, [("authorization", _WRONG_KEY)]),
        request_bytes(CHAT, good[:-5], [authorization]),
        request_bytes(CHAT, good.replace(b'"role":', b'"role":7,"x":'), [authorization]),
        request_bytes(CHAT, good.replace(b'"m"', b"[7]"), [authorization]),
        request_bytes(f"/v1/nothing/{_QUERY[:3]}?key={_QUERY}", b"", [authorization], method="GET"),
        request_bytes(CHAT, good, [*fields, ("content-encoding", "gzip")]),
        request_bytes(CHAT, good, [authorization]).replace(b"host:", b"host\0:"),
    ]


async def _ask(port: int, request: bytes) -> Answer:
    client = await HttpClient.open(port)
    client.send(request)
    answer = await client.answer()
    client.close()
    return answer


async def test_canaries_do_not_turn_up_outside_of_the_call_itself() -> None:
    """Access log, log, metrics and every error of ours, whatever goes wrong."""
    async with CaseServer() as server:
        text = policy(
            server.base_url,
            routes={"*": {"timeouts": {"first_token": "200ms"}, "retry": {"attempts": 0}}},
            keys=[{"name": "dev", "key": "env:GATEWAY_KEY"}],
        ).replace("type: openai", "type: openai\n    api_key: env:UPSTREAM_KEY")
        environ = {"GATEWAY_KEY": _CLIENT_KEY, "UPSTREAM_KEY": _UPSTREAM_KEY, "SLIPSTREAM_LOG_LEVEL": "debug"}
        async with start_gateway(text, environ=environ) as gateway:
            server.next(*_ANSWERS)
            answers = [await _ask(gateway.port, request) for request in _requests()]
            metrics = (await gateway.metrics()).text
            assert await gateway.terminate() == 0
            num_lines = len(gateway.log)
            shown = {"metrics": metrics, "access log": gateway.stdout, "log": gateway.stderr}

    assert all(received.header("authorization") == f"Bearer {_UPSTREAM_KEY}" for received in server.last.values())
    assert num_lines >= len(answers) - 1
    shown |= {f"answer {index}": answer.body.decode() for index, answer in enumerate(answers)}
    shown |= {f"head {index}": repr(answer.headers) for index, answer in enumerate(answers)}
    found = {where: canary for where, what in shown.items() for canary in _CANARIES if canary in what}
    assert found == {}, json.dumps(shown)[:3000]
