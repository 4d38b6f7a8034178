"""Calls a running gateway with two keys, to find out whether the second can tell what the first has asked before."""

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
"""The keys take turns after so many questions, so that a gateway whose speed changes does so for all groups alike."""

_TIMEOUT_S = 120.0
_NUM_WORDS = 6
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_SHOWN_VALUES = frozenset({"x-cache", "x-cache-reason"})


class CannotAudit(Exception):
    """The gateway cannot be reached, or does not answer this key."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One answer as the second key receives it. `age_s` is its age at the question, by the date that it carries."""

    first_s: float
    last_s: float
    fields: frozenset[str]
    age_s: float


@dataclass(frozen=True, slots=True)
class TimingSignal:
    """A property of answers that may separate the groups: its values in both of them, and how well it does."""

    name: str
    before: Sequence[float]
    never: Sequence[float]
    auc: Auc


class TimedClient:
    """A client with one key and one connection, which measures its answers."""

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
        """Ask and read the whole answer. Raises: CannotAudit."""
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
            excerpt = whole[:300].decode("utf-8", "replace")
            raise CannotAudit(f"a question was answered with {response.status}: {excerpt}")
        return Probe(first - began, last - began, _fields(response.getheaders()), asked_at - _created(whole, asked_at))


def measure_signals(
    first: TimedClient, second: TimedClient, num_questions: int, random: Random, note: Callable[[int, int], None]
) -> list[TimingSignal]:
    """Ask all questions and return the signals; `note` is called with how many of how many have been asked.

    Raises: CannotAudit.
    """
    before: list[Probe] = []
    never: list[Probe] = []
    total = 3 * num_questions
    for client in (first, second):
        # The first question of a connection includes connecting, so it does not count.
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
    return _signals(before, never)


def _signals(before: list[Probe], never: list[Probe]) -> list[TimingSignal]:
    signals = [
        _signal("first byte", [probe.first_s for probe in before], [probe.first_s for probe in never]),
        _signal("last byte", [probe.last_s for probe in before], [probe.last_s for probe in never]),
        # Stored answers are older: with the sign turned, a smaller value means a stored answer here as well.
        _signal("date", [-probe.age_s for probe in before], [-probe.age_s for probe in never]),
    ]
    fields = sorted(frozenset().union(*(probe.fields for probe in (*before, *never))))
    shown = [
        _signal(
            field, [-float(field in each.fields) for each in before], [-float(field in each.fields) for each in never]
        )
        for field in fields
    ]
    return [*signals, *sorted(shown, key=lambda signal: -abs(signal.auc.value - 0.5))[:1]]


def _signal(name: str, before: Sequence[float], never: Sequence[float]) -> TimingSignal:
    return TimingSignal(name, before, never, area(before, never))


def _fields(headers: Sequence[tuple[str, str]]) -> frozenset[str]:
    """The names of an answer's headers; those of the cache with their values."""
    named = [(name.lower(), value) for name, value in headers]
    return frozenset(f"{name}: {value}" if name in _SHOWN_VALUES else name for name, value in named)


def _created(body: bytes, otherwise: float) -> float:
    """The date of creation in an answer."""
    line = next((line for line in body.splitlines() if line.startswith(b"data: {")), b"data: " + body)
    try:
        created = json.loads(line.removeprefix(b"data: "))["created"]
    except (ValueError, KeyError, TypeError):
        return otherwise
    return float(created) if isinstance(created, int) else otherwise


def _question(random: Random) -> str:
    """A question that is certainly new, and similar to no other."""
    words = ["".join(random.choice(_CONSONANTS) + random.choice(_VOWELS) for _ in range(4)) for _ in range(_NUM_WORDS)]
    return f"Answer with one word: which of these is the longest to say, {', '.join(words)}?"
