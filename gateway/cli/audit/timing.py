"""Asks a running gateway with two keys, and looks for what tells the second one what the first has asked before."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from random import Random
from urllib.parse import urlsplit

from gateway.cli.audit.auc import Auc, area

_BLOCK = 10
"""So many questions are asked by the first key before the second asks them: a gateway that slows down does so alike."""

_TIMEOUT_S = 120.0
_NUM_WORDS = 6
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_SHOWN_VALUES = frozenset({"x-cache", "x-cache-reason"})


class CannotAudit(Exception):
    """The gateway is not there, or does not answer this key."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One answer, as the second key saw it. `age_s`: how long before the question it says that it was made."""

    first_s: float
    last_s: float
    fields: frozenset[str]
    age_s: float


@dataclass(frozen=True, slots=True)
class TimingSignal:
    """Something that may tell the groups apart: its value for each probe of both, and how well it does."""

    name: str
    before: Sequence[float]
    never: Sequence[float]
    auc: Auc


class TimedClient:
    """Somebody with a key, on one connection of their own."""

    def __init__(self, url: str, key: str, model: str, *, stream: bool) -> None:
        parts = urlsplit(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = kind(parts.netloc, timeout=_TIMEOUT_S)
        self._path = f"{parts.path.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._fields = {"model": model, "temperature": 0, "stream": stream}

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()

    def ask(self, question: str) -> Probe:
        """One answer, read to its end. Raises: CannotAudit."""
        body = json.dumps({**self._fields, "messages": [{"role": "user", "content": question}]}).encode()
        try:
            asked_at = time.time()
            began = time.perf_counter()
            self._connection.request("POST", self._path, body, self._headers)
            response = self._connection.getresponse()
            whole = response.read1()
            first = time.perf_counter()
            whole += response.read()
            last = time.perf_counter()
        except (OSError, HTTPException) as error:
            raise CannotAudit(f"the gateway does not answer: {error or type(error).__name__}") from error
        if response.status != 200:
            said = whole[:300].decode("utf-8", "replace")
            raise CannotAudit(f"a question was answered with {response.status}: {said}")
        return Probe(first - began, last - began, _fields(response.getheaders()), asked_at - _created(whole, asked_at))


def look_for_signs(
    first: TimedClient, second: TimedClient, num_questions: int, random: Random, note: Callable[[int, int], None]
) -> list[TimingSignal]:
    """The signs, of which each may tell; `note` hears how many of how many questions have been asked.

    Raises: CannotAudit.
    """
    before: list[Probe] = []
    never: list[Probe] = []
    total = 3 * num_questions
    for client in (first, second):
        # The first of a connection has to be made.
        client.ask(_question(random))
    for start in range(0, num_questions, _BLOCK):
        known = [_question(random) for _ in range(min(_BLOCK, num_questions - start))]
        for question in known:
            first.ask(question)
        asked = [(question, before) for question in known] + [(_question(random), never) for _ in known]
        random.shuffle(asked)
        for question, group in asked:
            group.append(second.ask(question))
        note(len(before) * 3, total)
    return _signs(before, never)


def _signs(before: list[Probe], never: list[Probe]) -> list[TimingSignal]:
    signs = [
        _sign("first byte", [probe.first_s for probe in before], [probe.first_s for probe in never]),
        _sign("last byte", [probe.last_s for probe in before], [probe.last_s for probe in never]),
        # What is older is what was stored, so that here too a smaller number stands for it.
        _sign("date", [-probe.age_s for probe in before], [-probe.age_s for probe in never]),
    ]
    fields = sorted(frozenset().union(*(probe.fields for probe in (*before, *never))))
    shown = [
        _sign(
            field, [-float(field in each.fields) for each in before], [-float(field in each.fields) for each in never]
        )
        for field in fields
    ]
    return [*signs, *sorted(shown, key=lambda sign: -abs(sign.auc.value - 0.5))[:1]]


def _sign(name: str, before: Sequence[float], never: Sequence[float]) -> TimingSignal:
    return TimingSignal(name, before, never, area(before, never))


def _fields(headers: Sequence[tuple[str, str]]) -> frozenset[str]:
    """The names of an answer's headers, and what those of the cache say."""
    named = [(name.lower(), value) for name, value in headers]
    return frozenset(f"{name}: {value}" if name in _SHOWN_VALUES else name for name, value in named)


def _created(body: bytes, otherwise: float) -> float:
    """When an answer says that it was made."""
    line = next((line for line in body.splitlines() if line.startswith(b"data: {")), b"data: " + body)
    try:
        created = json.loads(line.removeprefix(b"data: "))["created"]
    except (ValueError, KeyError, TypeError):
        return otherwise
    return float(created) if isinstance(created, int) else otherwise


def _question(random: Random) -> str:
    """A question that nobody has asked, nor one like it."""
    words = ["".join(random.choice(_CONSONANTS) + random.choice(_VOWELS) for _ in range(4)) for _ in range(_NUM_WORDS)]
    return f"Answer with one word: which of these is the longest to say, {', '.join(words)}?"
