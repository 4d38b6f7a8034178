"""An upstream that minds nothing: it answers every method and every path, however written, as if a model had worked.

So whatever reaches it would have cost something at some real server.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.servers.openai_server import Behaviour, OpenAIServer, Received

TOKENS = 1000
"""Of each prompt, and of each answer."""
USAGE = {
    "prompt_tokens": TOKENS,
    "completion_tokens": TOKENS,
    "input_tokens": TOKENS,
    "output_tokens": TOKENS,
    "total_tokens": 2 * TOKENS,
}
_CHOICE = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
_ANSWER: dict[str, Any] = {
    "id": "lax",
    "object": "chat.completion",
    "model": "m",
    "choices": [_CHOICE],
    "content": [{"type": "text", "text": "hi"}],
    "output": [],
    "data": [{"index": 0, "embedding": [0.5]}],
    "usage": USAGE,
}
_CHUNK = {"id": "lax", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "hi"}}]}
_LAST = {**_CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


class LaxServer(OpenAIServer):
    """Answers as above, streamed where a body asks for it."""

    def plan(self, received: Received) -> Behaviour:
        """As `OpenAIServer`, with an answer to anything."""
        super().plan(received)
        try:
            body = received.json()
        except ValueError:
            body = None
        if not isinstance(body, dict) or not body.get("stream"):
            return Behaviour(body=json.dumps(_ANSWER).encode())
        if "responses" in received.target.lower():
            done = {"type": "response.completed", "response": _ANSWER}
            return Behaviour(events=(b"data: " + json.dumps(done).encode() + b"\n\n",))
        chunks = [_CHUNK, _LAST, {**_CHUNK, "choices": [], "usage": USAGE}]
        return Behaviour(
            events=(*(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks), b"data: [DONE]\n\n")
        )

    def num_sent(self, request_id: str) -> int:
        """How often a request with that id has come here."""
        return sum(received.header("x-request-id") == request_id for received in self.requests)
