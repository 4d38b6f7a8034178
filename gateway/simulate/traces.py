"""Reading request traces: when each request came, how long its prompt and its answer were, what it began with.

The format is recognised by the first line. A line that cannot be used ends the reading with its number and its field.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

import msgspec

from backends.errors import ConfigurationError
from backends.json_errors import NOT_JSON

BLOCK_TOKENS = 512
"""Prompt tokens that one block id of a trace stands for."""

_T = TypeVar("_T")

_MAX_TOKENS = 10_000_000
_MAX_SHOWN = 80
_FIELD = re.compile(r"(?:field `|\$\.)(\w+)")

Tokens = Annotated[int, msgspec.Meta(ge=1, le=_MAX_TOKENS)]
Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_TOKENS)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Loss = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
Block = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
TraceFormat = Literal["slipstream", "mooncake", "access log", "azure", "burstgpt", "columns"]


class Logged(msgspec.Struct, frozen=True):
    """What the access log says of the answer that a backend gave. Times count from the request's arrival."""

    backend: str
    attempts: int
    cached_tokens: int
    waited_s: float
    """For admission, before it was sent."""
    first_token_s: float | None
    """None of an answer that was not streamed."""
    total_s: float


class Labels(msgspec.Struct, frozen=True):
    """How right a small and a large model were about a request's prompt, 0..1, and what a calibration that has not seen
    it expects to be lost where the small one answers, as a share of the large one's right answers.
    """

    draft_loss: float
    weak: float
    strong: float


class TraceRequest(msgspec.Struct, frozen=True):
    """One request of a trace. `at_s` counts from the first one; `line` is where it stands in its file.

    `blocks` are ids of the prompt's beginning, `BLOCK_TOKENS` each, an id for everything up to its end; the last may be
    a part. `client` and `model` are empty where the trace does not say; `logged` is there only in lines of the access
    log that name a backend.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    line: int
    blocks: tuple[int, ...] = ()
    client: str = ""
    model: str = ""
    logged: Logged | None = None
    labels: Labels | None = None

    @property
    def cached_tokens(self) -> int:
        """How much of the prompt a cache is known to have had."""
        return self.logged.cached_tokens if self.logged is not None else 0


class Columns(NamedTuple):
    """The names of a CSV file's columns, in any case; empty: there is none. `at` has seconds, or dates and times."""

    at: str
    prompt: str
    output: str
    model: str = ""
    client: str = ""

    @classmethod
    def of(cls, text: str) -> Columns:
        """Of `at=NAME,prompt=NAME,output=NAME` and, if there are such, `model=NAME,client=NAME`.

        Raises: ConfigurationError.
        """
        named: dict[str, str] = {}
        for part in text.split(","):
            field, _, name = part.partition("=")
            field = field.strip()
            if field not in cls._fields or field in named or not name.strip():
                known = ", ".join(cls._fields)
                raise ConfigurationError(f"{_shown(part)} is no FIELD=NAME with a field of {known}, each once at most")
            named[field] = name.strip().lower()
        missing = [field for field in ("at", "prompt", "output") if field not in named]
        if missing:
            raise ConfigurationError(f"name the column of {missing[0]} too: {missing[0]}=NAME")
        return cls(**named)


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace, in order of arrival."""

    name: str
    format: TraceFormat
    requests: tuple[TraceRequest, ...]
    num_skipped: int
    """Lines without an answer: requests that had failed when they were recorded."""

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return self.requests[-1].at_s


class _Own(msgspec.Struct):
    t: Moment
    i: Tokens
    o: Tokens
    h: tuple[Block, ...] = ()
    c: str = ""
    loss: Loss | None = None
    w: Share = 0.0
    s: Share = 1.0


class _Mooncake(msgspec.Struct):
    timestamp: Moment
    """Milliseconds."""
    input_length: Tokens
    output_length: Tokens
    hash_ids: tuple[Block, ...] = ()


class _Usage(msgspec.Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    cached_tokens: Count = 0


class _LogLine(msgspec.Struct):
    time: Moment
    """When it was over, in Unix seconds."""
    total_ms: Moment
    status: int
    operation: str
    usage: _Usage | None = None
    model: str = ""
    key: str = ""
    tenant: str = ""
    backend: str | None = None
    attempts: Count = 0
    first_token_ms: Moment | None = None
    waited_ms: Moment | None = None


_Row = tuple[float, TraceRequest] | None
"""A request with its moment on the trace's own clock, in seconds; None for a line to skip."""


def read_trace(path: Path, columns: Columns | None = None) -> Trace:
    """Read a trace, gzip or plain, in one of the known formats, or a CSV file with a head that has these columns.

    Raises: ConfigurationError, naming the file, the line and the field.
    """
    lines = _lines(path)
    number, first = next(lines, (0, ""))
    if not first:
        raise ConfigurationError(f"{path}: the trace is empty")
    if columns is None:
        name, parse = _recognise(path, first)
    else:
        name, parse = "columns", _CsvReader(path, _head(first), columns, _moment)
    has_head = columns is not None or first[0] != "{"
    numbered: Iterable[tuple[int, str]] = lines if has_head else _with_first(number, first, lines)
    rows: list[tuple[float, TraceRequest]] = []
    num_skipped = 0
    for number, line in numbered:
        row = parse(number, line)
        if row is None:
            num_skipped += 1
        else:
            rows.append(row)
    if not rows:
        raise ConfigurationError(f"{path}: the trace has no request that was answered")
    rows.sort(key=lambda row: row[0])
    start = rows[0][0]
    requests = tuple(msgspec.structs.replace(request, at_s=at - start) for at, request in rows)
    return Trace(path.name, name, requests, num_skipped)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    number = 0
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            with io.TextIOWrapper(gzip.open(file) if is_gzip else file, encoding="utf-8-sig") as text:
                for number, line in enumerate(text, 1):
                    if line.strip():
                        yield number, line.strip()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ConfigurationError(f"{path}:{number + 1}: the gzip data is torn: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}:{number + 1}: this is not UTF-8 text") from error
    except OSError as error:
        raise ConfigurationError(f"{path}: the trace cannot be read: {error.strerror or error}") from error


def _with_first(number: int, first: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield number, first
    yield from lines


def _recognise(path: Path, first: str) -> tuple[TraceFormat, Callable[[int, str], _Row]]:
    if first[0] == "{":
        try:
            keys = set(msgspec.json.decode(first, type=dict[str, msgspec.Raw]))
        except NOT_JSON as error:
            raise _torn(path, 1, first) from error
        if {"t", "i", "o"} & keys:
            return "slipstream", _JsonReader(path, _Own, _own)
        if {"input_length", "hash_ids"} & keys:
            return "mooncake", _JsonReader(path, _Mooncake, _mooncake)
        if {"request_id", "total_ms"} & keys:
            return "access log", _JsonReader(path, _LogLine, _logged)
    else:
        head = _head(first)
        if {"contexttokens", "generatedtokens"} & set(head):
            return "azure", _CsvReader(path, head, Columns("timestamp", "contexttokens", "generatedtokens"), _date)
        if {"request tokens", "response tokens"} & set(head):
            columns = Columns("timestamp", "request tokens", "response tokens", "model" if "model" in head else "")
            return "burstgpt", _CsvReader(path, head, columns, _seconds)
    raise ConfigurationError(
        f"{path}:1: this is no known format of traces; it begins {_shown(first)}. Known are our own (t, i, o, h, c), "
        "Mooncake's, the access log, and the CSV files of Azure and BurstGPT; for another CSV file name its --columns; "
        "see docs/simulate.md"
    )


def _head(line: str) -> list[str]:
    return [column.strip().lower() for column in next(csv.reader([line]))]


class _JsonReader:
    """Lines that are JSON objects of one shape."""

    def __init__(self, path: Path, shape: type[msgspec.Struct], convert: Callable[[int, msgspec.Struct], _Row]) -> None:
        self._path = path
        self._decode = msgspec.json.Decoder(shape).decode
        self._convert = convert

    def __call__(self, number: int, line: str) -> _Row:
        try:
            return self._convert(number, self._decode(line))
        except msgspec.ValidationError as error:
            found = _FIELD.search(str(error))
            where = f'field "{found[1]}": ' if found else ""
            raise ConfigurationError(f"{self._path}:{number}: {where}{error}") from error
        except NOT_JSON as error:
            raise _torn(self._path, number, line) from error


class _CsvReader:
    """Lines of a CSV file with that head."""

    def __init__(self, path: Path, head: list[str], columns: Columns, moment: Callable[[str], float]) -> None:
        self._path = path
        self._num_columns = len(head)
        for column in filter(None, columns):
            if column not in head:
                raise ConfigurationError(f'{path}:1: field "{column}": the head has no such column')
        self._columns = columns
        self._places = [head.index(column) if column else None for column in columns]
        self._moment = moment

    def __call__(self, number: int, line: str) -> _Row:
        cells = next(csv.reader([line]))
        if len(cells) != self._num_columns:
            raise _torn(self._path, number, line)
        names = self._columns
        at, prompt_text, output_text, model, client = ("" if place is None else cells[place] for place in self._places)
        seconds = self._parsed(number, names.at, at, self._moment)
        prompt = self._parsed(number, names.prompt, prompt_text, _count)
        output = self._parsed(number, names.output, output_text, _count)
        if not output:
            return None
        if not prompt:
            raise ConfigurationError(f'{self._path}:{number}: field "{names.prompt}": a prompt has at least one token')
        return seconds, TraceRequest(0.0, prompt, output, number, client=client, model=model)

    def _parsed(self, number: int, name: str, text: str, parse: Callable[[str], _T]) -> _T:
        try:
            return parse(text.strip())
        except ValueError as error:
            raise ConfigurationError(f'{self._path}:{number}: field "{name}": {_shown(text)} {error}') from error


def _own(number: int, row: msgspec.Struct) -> _Row:
    assert isinstance(row, _Own)
    labels = Labels(row.loss, row.w, row.s) if row.loss is not None else None
    return row.t, TraceRequest(0.0, row.i, row.o, number, row.h, row.c, labels=labels)


def _mooncake(number: int, row: msgspec.Struct) -> _Row:
    assert isinstance(row, _Mooncake)
    return row.timestamp / 1e3, TraceRequest(0.0, row.input_length, row.output_length, number, row.hash_ids)


def _logged(number: int, row: msgspec.Struct) -> _Row:
    assert isinstance(row, _LogLine)
    usage = row.usage
    if row.status >= 400 or usage is None or not usage.prompt_tokens or not usage.completion_tokens:
        return None
    request = TraceRequest(
        0.0,
        usage.prompt_tokens,
        usage.completion_tokens,
        number,
        client=row.key or row.tenant,
        model=row.model,
        logged=_answer(row, usage) if row.backend and row.attempts else None,
    )
    return row.time - row.total_ms / 1e3, request


def _answer(row: _LogLine, usage: _Usage) -> Logged:
    return Logged(
        backend=row.backend or "",
        attempts=row.attempts,
        cached_tokens=usage.cached_tokens,
        waited_s=(row.waited_ms or 0.0) / 1e3,
        first_token_s=row.first_token_ms / 1e3 if row.first_token_ms is not None else None,
        total_s=row.total_ms / 1e3,
    )


def _date(text: str) -> float:
    # Azure writes seven digits of a second, Python reads six.
    text = re.sub(r"(\.\d{6})\d+", r"\1", text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError("is no date and time") from error
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError as error:
        raise ValueError("is no number of seconds") from error
    if not 0 <= seconds <= 1e12:
        raise ValueError("is no number of seconds")
    return seconds


def _moment(text: str) -> float:
    try:
        return _seconds(text)
    except ValueError:
        return _date(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_TOKENS:
        raise ValueError(f"is no whole number from 0 to {_MAX_TOKENS:,}")
    return int(text)


def _torn(path: Path, number: int, line: str) -> ConfigurationError:
    return ConfigurationError(f"{path}:{number}: this line is torn, or of another format: {_shown(line)}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "...")
