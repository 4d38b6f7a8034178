"""What SGLang does where rounds meet it, in front of an engine of this project: the engine says what it says.

Streamed completions tell token ids, streamed chats refuse to (https://github.com/sgl-project/sglang/pull/30917);
`/generate` scores a prompt from a place on and counts in `meta_info`.
"""

from __future__ import annotations

from typing import Any, Self

import httpx
import msgspec

from backends.engine.text.tokenizer import Tokenizer
from tests.support.servers.raw_server import Peer, RawServer

_JSON, _EVENTS = b"application/json", b"text/event-stream"
_Answered = tuple[int, bytes, bytes]
"""Status, content type, body."""


class SglangServer:
    """`upstream`: where a gateway with that engine listens. `num_scored` counts calls of `/generate`."""

    def __init__(self, upstream: str, tokenizer: Tokenizer) -> None:
        self._client = httpx.AsyncClient(base_url=upstream, timeout=300, verify=False)
        self._tokenizer = tokenizer
        self._server = RawServer(self._serve)
        self.num_scored = 0

    @property
    def base_url(self) -> str:
        """Where its OpenAI API begins."""
        return f"{self._server.base_url}/v1"

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._server.__aexit__(*exc_info)
        await self._client.aclose()

    async def _serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            path = request.head.split(b" ", 2)[1].decode()
            status, kind, body = await self._answer(path, msgspec.json.decode(request.body))
            head = b"HTTP/1.1 %d OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (status, kind, len(body))
            peer.send(head + body)

    async def _answer(self, path: str, body: dict[str, Any]) -> _Answered:
        if path == "/generate":
            return await self._generated(body)
        if path == "/v1/chat/completions" and body.get("return_token_ids"):
            if body.get("stream"):
                told = {"object": "error", "message": "return_token_ids is not supported with streaming", "code": 400}
                return 400, _JSON, msgspec.json.encode(told)
            return await self._chat_with_tokens(body)
        reply = await self._client.post(path, json=body)
        return reply.status_code, _EVENTS if body.get("stream") else _JSON, reply.content

    async def _completed(self, body: dict[str, Any]) -> dict[str, Any]:
        reply = await self._client.post("/v1/completions", json={**body, "return_token_ids": True})
        told: dict[str, Any] = reply.raise_for_status().json()
        return told

    async def _chat_with_tokens(self, body: dict[str, Any]) -> _Answered:
        prompt = self._tokenizer.apply_chat_template(body["messages"])
        asked = {name: value for name, value in body.items() if name != "messages"}
        told = await self._completed({**asked, "prompt": prompt})
        (choice,) = told["choices"]
        message = {"role": "assistant", "content": choice["text"]}
        kept = {name: choice[name] for name in ("index", "finish_reason", "token_ids")}
        choice = {**kept, "message": message, "prompt_token_ids": prompt}
        return 200, _JSON, msgspec.json.encode({**told, "object": "chat.completion", "choices": [choice]})

    async def _generated(self, body: dict[str, Any]) -> _Answered:
        self.num_scored += 1
        ids, sampling = body["input_ids"], body["sampling_params"]
        assert sampling["temperature"] == 0, "what is drawn cannot be compared with what is likeliest"
        prompts = [ids[:place] for place in range(body["logprob_start_len"] + 1, len(ids) + 1)]
        asked = {"model": "all", "prompt": prompts, "max_tokens": 1, "temperature": 0}
        told = await self._completed({**asked, "ignore_eos": sampling["ignore_eos"]})
        choices = sorted(told["choices"], key=lambda choice: choice["index"])
        scored = [[-0.5, choice["token_ids"][0], None] for choice in choices]
        reason = choices[-1]["finish_reason"]
        meta = {
            "id": "g",
            "finish_reason": {"type": reason, **({"length": 1} if reason == "length" else {"matched": scored[-1][1]})},
            "prompt_tokens": len(ids),
            "completion_tokens": 1,
            "cached_tokens": 0,
            "input_token_logprobs": [[None, token, None] for token in ids[body["logprob_start_len"] :]],
            "output_token_logprobs": [scored[-1]],
            "input_top_logprobs": [None, *([each] for each in scored[:-1])],
            "output_top_logprobs": [[scored[-1]]],
        }
        return 200, _JSON, msgspec.json.encode({"text": "", "output_ids": [scored[-1][1]], "meta_info": meta})
