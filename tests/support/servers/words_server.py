"""An upstream that answers by subject, and whose embeddings are those of `WordEncoder`: nothing of it has to be loaded.

A question is a subject's words and others around them; whoever asks about the same subject gets the same answer.
"""

from __future__ import annotations

from random import Random
from typing import Any, Self

import msgspec

from tests.support.policy.semantic import DIMENSION, WordEncoder
from tests.support.servers.raw_server import Peer, RawServer

_WORDS_A_SUBJECT = 5
_CONSONANTS, _VOWELS = "bdfgklmnprst", "aeiou"


class WordsServer:
    """`num_asked` counts chat completions."""

    def __init__(self, num_subjects: int = 12, seed: int = 1) -> None:
        self._random = Random(seed)
        self._encoder = WordEncoder()
        self.subjects = [[self._word() for _ in range(_WORDS_A_SUBJECT)] for _ in range(num_subjects)]
        self.num_asked = 0
        self._server = RawServer(self._serve)

    @property
    def base_url(self) -> str:
        """Where its API begins."""
        return f"{self._server.base_url}/v1"

    def question(self, subject: int) -> str:
        """Words about a subject that were never put so before."""
        return " ".join([self._word(), *self.subjects[subject], self._word()])

    def answer(self, question: str) -> str:
        """What it says to that."""
        number = next(n for n, words in enumerate(self.subjects) if words[0] in question.split())
        return f"Subject {number} is settled by rule {100 + number}."

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._server.__aexit__(*exc_info)

    def _word(self) -> str:
        return "".join(self._random.choice(_CONSONANTS) + self._random.choice(_VOWELS) for _ in range(4))

    async def _serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            body = msgspec.json.decode(request.body)
            made = await self._embed(body) if b"/embeddings" in request.head.split(b"\r\n")[0] else self._chat(body)
            encoded = msgspec.json.encode(made)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(encoded)
            peer.send(head + encoded)

    async def _embed(self, body: dict[str, Any]) -> dict[str, Any]:
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        vectors = [(await self._encoder.encode(text)).tolist() for text in texts]
        data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
        return {"object": "list", "data": data, "model": "words", "usage": {"prompt_tokens": 1, "total_tokens": 1}}

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        self.num_asked += 1
        text = self.answer(body["messages"][-1]["content"])
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
        head = {"id": f"chatcmpl-{self.num_asked}", "object": "chat.completion", "created": 1_700_000_000}
        return {**head, "model": "words", "choices": [choice], "usage": usage}


ENCODER = {"type": "openai", "backend": "up", "model": "words", "dimension": DIMENSION}
"""The section `encoder` of a policy whose backend `up` is such a server."""
