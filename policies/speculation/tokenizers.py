"""Whether a backend has the tokens of a tokenizer: texts that tokenizers cut in many ways, as the backend cuts them."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from msgspec import structs

from backends.clock import Clock
from backends.errors import SlipstreamError, UpstreamGarbage
from backends.protocol import Backend, Call, Facts
from policies.background import Background
from policies.beside import tell_charges
from policies.speculation.own_completion import own_completion
from policies.speculation.rounds.words import Words

_logger = logging.getLogger(__name__)
_MAX_CHECKS = 16
"""Under way for all targets of a route."""
_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    " leading,  double   and trailing spaces  ",
    "def f(x):\n\treturn {'a': [1, 2.5e-3], \"b\": None}\r\n\r\n",
    "1234567890 3.14159 1,000,000 0xFF 2026-11-25T21:00:00Z",
    "Größe, naïve, Ærøskøbing, Ελλάδα, Привет, שלום, العربية",
    "日本語の文章と한국어 그리고 中文。",
    "emoji 🙂👩‍👩‍👧‍👦🏳️‍🌈 and combining e\u0301 \u200b zero width",
    "antidisestablishmentarianism HTTPServer camelCase snake_case www.example.org/?q=%20",
)


class _Choice(msgspec.Struct):
    index: int
    prompt_token_ids: list[int] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []


_decode = msgspec.json.Decoder(_Answer).decode


class KnownTokens:
    """Of which targets of a route it is known that they and the draft have the tokens of `words`."""

    def __init__(self, inner: Backend, draft: Backend, draft_model: str, words: Words, clock: Clock) -> None:
        """`draft_model`: the name that the draft is asked by; empty: that of the call."""
        self._inner = inner
        self._draft = draft
        self._draft_model = draft_model
        self._words = words
        self._clock = clock
        self._checks = Background(_MAX_CHECKS)
        self._checking: set[str] = set()
        self.known: set[str] = set()
        """The names of these targets."""

    def check(self, call: Call, name: str, refused: Callable[[], None]) -> None:
        """Find out about a target beside a call that it has answered; `refused` is called where tokens differ."""
        if name not in self.known | self._checking and self._checks.start(self._check(call, name, refused)):
            self._checking.add(name)

    async def wait(self) -> None:
        """Wait until what is being found out is."""
        await self._checks.wait()

    async def aclose(self) -> None:
        """Break off what is being found out. Safe to call twice."""
        await self._checks.aclose()

    async def _check(self, call: Call, name: str, refused: Callable[[], None]) -> None:
        call = structs.replace(call, deadline=self._clock.now() + call.timeouts.total_s)
        try:
            found = await differs(self._inner, call, call.model, self._words, pinned=name)
            found = f'target "{name}": {found}' if found else ""
            if not found:
                found = await differs(self._draft, call, self._draft_model or call.model, self._words)
                found = f"its draft: {found}" if found else ""
        except SlipstreamError as error:
            found = error.message
        finally:
            self._checking.discard(name)
        if found:
            _logger.warning("answers of %s go on without a draft: %s", name, found)
            refused()
        else:
            self.known.add(name)


async def differs(backend: Backend, call: Call, model: str, words: Words, pinned: str = "") -> str:
    """What speaks against a backend's having these tokens; empty: nothing. Asked once, of the call's backends.

    Raises: UpstreamError, UpstreamGarbage where the backend does not answer, or does not tell its tokens.
    """
    facts = Facts(extra=call.facts.extra)
    body = {"model": model, "prompt": list(_TEXTS), "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    reply = await backend.send(own_completion(call, body, facts, model=model, pinned=pinned))
    try:
        if reply.status != 200 or reply.body is None:
            raise UpstreamGarbage(f"it answered the texts that tell its tokenizer with status {reply.status}")
        choices = {choice.index: choice.prompt_token_ids for choice in _decode(reply.body).choices}
    except msgspec.DecodeError:
        raise UpstreamGarbage("its answer to the texts that tell its tokenizer cannot be read") from None
    finally:
        await reply.aclose()
        tell_charges(facts, facts.extra)
    for index, text in enumerate(_TEXTS):
        told = choices.get(index)
        if told is None:
            return "it does not tell the tokens of prompts (`return_token_ids`)"
        if told != words.encode(text):
            return f"it has other tokens for {text!r}"
    return ""
