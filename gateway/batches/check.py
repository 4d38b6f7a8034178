"""Looks through a new batch's input: every line good, every model somebody's, or nothing of it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from gateway.batches.batch_store import BatchStore
from gateway.batches.callers import stack_for_line
from gateway.batches.input_lines import BadLine, LineProblem, read_line
from gateway.batches.records import BatchRow, NewLine
from gateway.core import Core
from gateway.runtime import Runtime

MAX_LINES = 50_000
_MAX_PROBLEMS = 100
_CHUNK_LINES = 500
_CHUNK_BYTES = 4 * 1024**2
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BatchCheck:
    """One batch's look-through. Memory: a chunk of lines, and every custom id."""

    def __init__(self, batch: BatchRow, path: Path, runtime: Runtime, max_line_bytes: int) -> None:
        self._batch = batch
        self._path = path
        self._runtime = runtime
        self._max_line_bytes = max_line_bytes
        self._routes: dict[str, str | None] = {}
        self._custom_ids: set[str] = set()
        self._number = 0
        self.num_lines = 0
        self.models: set[str] = set()
        self.problems: list[LineProblem] = []

    def chunks(self) -> Iterator[list[NewLine]]:
        """The good lines, some at a time; ends early once there are many `problems`. Raises: OSError."""
        with self._path.open("rb") as file:
            chunk: list[NewLine] = []
            num_bytes = 0
            while len(self.problems) < _MAX_PROBLEMS:
                offset = file.tell()
                raw = self._next(file)
                if raw is None:
                    break
                num_bytes += len(raw)
                line = self._look_at(raw, offset)
                if line is not None:
                    chunk.append(line)
                if len(chunk) >= _CHUNK_LINES or num_bytes >= _CHUNK_BYTES:
                    yield chunk
                    chunk, num_bytes = [], 0
            yield chunk
        if not self.num_lines and not self.problems:
            self.problems.append(LineProblem("empty_file", "the input file has no lines", None, None))

    def _next(self, file: BinaryIO) -> bytes | None:
        """The next line, or None at the end or where going on makes no sense."""
        raw = file.readline(self._max_line_bytes + 1)
        if not raw:
            return None
        self._number += 1
        if len(raw) > self._max_line_bytes:
            message = f"the line has more than {self._max_line_bytes} bytes"
            self.problems.append(LineProblem("line_too_long", message, None, self._number))
            return None
        return raw

    def _look_at(self, raw: bytes, offset: int) -> NewLine | None:
        if self._number == 1 and raw.startswith(_BYTE_ORDER_MARK):
            raw = raw[len(_BYTE_ORDER_MARK) :]
            offset += len(_BYTE_ORDER_MARK)
        if not raw.strip():
            return None
        self.num_lines += 1
        try:
            if self.num_lines > MAX_LINES:
                raise BadLine("too_many_requests", f"a batch has at most {MAX_LINES} lines")
            request = read_line(raw, self._batch.endpoint)
            if request.custom_id in self._custom_ids:
                raise BadLine("duplicate_custom_id", "another line has this custom_id", "custom_id")
            self._custom_ids.add(request.custom_id)
            route = self._route_for(request.model)
            if route is None:
                raise BadLine(
                    "model_not_found",
                    f'the model "{request.model}" does not exist here, or this key may not use it',
                    "body.model",
                )
        except BadLine as bad:
            self.problems.append(bad.problem(self._number))
            return None
        return NewLine(request.custom_id, offset, len(raw), request.model, route)

    def _route_for(self, model: str) -> str | None:
        if model not in self._routes:
            stack = stack_for_line(self._batch, model, self._runtime)
            self._routes[model] = stack.policy.name if stack is not None else None
            self.models.add(model)
        return self._routes[model]


async def check_batch(batch: BatchRow, path: Path, core: Core, store: BatchStore) -> None:
    """Set a batch going, or let it fail with what is wrong with it. Raises: StoreUnavailable."""
    await store.reset_lines(batch)
    runtime = core.acquire()
    try:
        check = BatchCheck(batch, path, runtime, core.settings.max_body)
        chunks = check.chunks()
        while True:
            try:
                chunk = await asyncio.to_thread(next, chunks, None)
            except OSError as error:
                check.problems.append(LineProblem("unreadable_file", f"the input cannot be read: {error}", None, None))
                break
            if chunk is None:
                break
            if not check.problems and not await store.add_lines(batch, chunk):
                return
    finally:
        runtime.release()
    if check.problems:
        await store.fail(batch, [msgspec.to_builtins(problem) for problem in check.problems])
    else:
        await store.begin(batch, check.num_lines, next(iter(check.models)) if len(check.models) == 1 else None)
