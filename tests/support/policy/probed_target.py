"""A target that knows no drafts and tells token ids, as vLLM and SGLang do; it does wrong what a test tells it to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from backends.charges.usage import Usage
from backends.drafts.push import Draft
from backends.engine.text.detokenizer import Detokenizer
from backends.engine.text.tokenizer import Tokenizer
from backends.operations import Operation
from backends.protocol import Call, Capabilities, Reply, Statistics
from backends.sse import DONE_EVENT, encode_event
from backends.stream import Stream
from tests.support.policy.drafting import SSE, FakeDraft

EOS = 2
PROMPT = [1, 273, 203]


def guessing(answer: Sequence[int], share: int, *, says_end: bool = False) -> FakeDraft:
    """A draft that is wrong at each place of the answer that `share` divides; 0: never. `says_end`: it goes on with the
    token that ends it, and others.
    """
    known_answer = [*answer, EOS, 9, 9] if says_end else answer

    def guess(known: list[int], most: int) -> list[int]:
        said = known[len(PROMPT) - 2 :]
        return [
            token + (share > 0 and place % share == 0)
            for place, token in enumerate(known_answer[len(said) :][:most], len(said))
        ]

    return FakeDraft(guess, step_s=0.0)


class ProbedTarget:
    """Says the tokens `answer` and the one that ends it, whatever it is asked. `wrong` changes the body of verdicts."""

    name = "target"
    capabilities = Capabilities(operations=frozenset(Operation))

    def __init__(self, tokenizer: Tokenizer, answer: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.answer = [*answer, EOS]
        self.wrong: Callable[[dict[str, Any]], object] = lambda body: None
        self.status = 200
        self.tells_tokens = True
        self.other_text = ""
        self.hides_until = 0
        self.tells_streams = True
        """Whether it takes `return_token_ids` with streamed chats, which SGLang refuses."""
        self.refuses = False
        self.calls: list[Call] = []
        self.num_open = 0
        self.num_probes = 0

    async def open(self) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing."""

    def statistics(self) -> Statistics:
        """None."""
        return Statistics()

    def is_writing(self, answer_id: str) -> bool:
        """It takes no drafts."""
        return False

    async def push(self, draft: Draft, *, tenant: str, key_id: str) -> None:
        """It takes no drafts."""
        raise AssertionError("nobody may push")

    async def verify(self, draft: Draft, *, tenant: str, key_id: str, alone: bool = False) -> None:
        """It takes no drafts."""
        raise AssertionError("nobody may ask a session")

    async def send(self, call: Call) -> Reply:
        """Answer."""
        self.calls.append(call)
        call.facts.backend = self.name
        body = call.body
        assert body is not None
        if self.refuses:
            return Reply(400, [], body=b'{"error":{"message":"no such thing"}}')
        if call.path == "/generate":
            return self._generated(body)
        if call.operation is Operation.CHAT and not call.stream:
            return self._begun(body)
        if call.stream:
            if call.operation is Operation.CHAT and "return_token_ids" in body and not self.tells_streams:
                return Reply(400, [], body=b'{"error":{"message":"not with stream"}}')
            self.num_open += 1
            known = body["prompt"][len(PROMPT) :] if call.operation is Operation.COMPLETION else []
            return Reply(200, SSE, stream=Stream(_Events(self, call, len(known))))
        prompts = body["prompt"]
        if isinstance(prompts[0], str):
            tokens = [self.tokenizer.encode(text) for text in prompts]
            choices = [{"index": place, "prompt_token_ids": each} for place, each in enumerate(tokens)]
            return Reply(200, [], body=msgspec.json.encode({"choices": choices}))
        self.num_probes += 1
        told: dict[str, Any] = {"choices": [self._verdict(place, each) for place, each in enumerate(prompts)]}
        self.wrong(told)
        return Reply(self.status, [], body=msgspec.json.encode(told))

    def _begun(self, body: Mapping[str, Any]) -> Reply:
        """A chat of one token."""
        token = self.answer[0]
        ends = token == EOS
        text = (
            ""
            if ends or self.hides_until
            else Detokenizer(self.tokenizer, continues=True).push([token]) + self.other_text
        )
        choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": text}}
        choice |= {"finish_reason": "stop" if ends else "length"}
        if body.get("return_token_ids"):
            choice |= {"token_ids": [token], "prompt_token_ids": PROMPT}
        told = {"id": "c-1", "created": 5, "model": "m", "choices": [choice]}
        return Reply(200, [(b"content-type", b"application/json")], body=msgspec.json.encode(told))

    def _generated(self, body: Mapping[str, Any]) -> Reply:
        """As SGLang's `/generate`: the likeliest token at each place from `logprob_start_len` on, and the next one."""
        self.num_probes += 1
        ids, start = body["input_ids"], body["logprob_start_len"]
        places = range(start + 1, len(ids) + 1)
        said = [self._verdict(0, ids[:place]) for place in places]
        scored = [[-0.1, each["token_ids"][0], None] for each in said]
        meta: dict[str, Any] = {
            "input_top_logprobs": [None, *([each] for each in scored[:-1])],
            "output_token_logprobs": [scored[-1]],
            "finish_reason": {"type": said[-1]["finish_reason"]},
            "prompt_tokens": len(ids),
            "completion_tokens": 1,
        }
        told = {"text": "", "output_ids": [scored[-1][1]], "meta_info": meta}
        self.wrong(told)
        return Reply(self.status, [], body=msgspec.json.encode(told))

    def _verdict(self, index: int, prompt: list[int]) -> dict[str, Any]:
        said = prompt[len(PROMPT) :]
        is_right = said == self.answer[: len(said)]
        token = self.answer[len(said)] if is_right and len(said) < len(self.answer) else 7
        return {"index": index, "token_ids": [token], "finish_reason": "stop" if token == EOS else "length"}

    def events(self, call: Call, known: int) -> list[bytes]:
        """Its own stream, behind so many tokens."""
        assert call.body is not None
        tells = self.tells_tokens and call.body.get("return_token_ids")
        most = call.body.get("max_tokens") or 1000
        is_chat, events = call.operation is Operation.CHAT, []
        writer = Detokenizer(self.tokenizer, continues=True)
        first: dict[str, Any] = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        head: dict[str, Any] = {"id": "c-1", "model": "m"}
        if is_chat:
            events.append({**head, "choices": [first], **({"prompt_token_ids": PROMPT} if tells else {})})
        for place, token in enumerate(self.answer[known : known + most]):
            text = "" if token == EOS else writer.push([token]) + self.other_text
            text = text if place >= self.hides_until else ""
            finish = "stop" if token == EOS else "length" if place + 1 == most else None
            choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
            choice |= {"delta": {"content": text} if text else {}} if is_chat else {"text": text}
            events.append({**head, "choices": [choice | ({"token_ids": [token]} if tells else {})]})
        return [*(encode_event(msgspec.json.encode(event)) for event in events), DONE_EVENT]


class _Events:
    def __init__(self, target: ProbedTarget, call: Call, known: int) -> None:
        self._target = target
        self._left = target.events(call, known)
        self._is_open = True
        call.facts.usage = Usage(prompt_tokens=len(PROMPT), completion_tokens=1)

    async def read(self) -> bytes:
        """An event at a time."""
        return self._left.pop(0) if self._left else b""

    async def aclose(self) -> None:
        """Count it."""
        self._target.num_open -= self._is_open
        self._is_open = False
