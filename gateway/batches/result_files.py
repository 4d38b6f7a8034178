"""Writes the files of a batch whose lines are all done: answers in one, everything else in the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gateway.batches.batch_store import BatchStore
from gateway.batches.file_store import FileStore, append
from gateway.batches.output_lines import error_line
from gateway.batches.records import BatchRow, BatchStatus, LineState

_CHUNK_LINES = 100
_EXPIRED = "This request could not be executed before the completion window expired."


async def finish_batch(batch: BatchRow, store: BatchStore, files: FileStore) -> BatchStatus:
    """Write them, in the order of the input, and say that it has ended. Raises: StoreUnavailable, OSError."""
    answers, errors = files.new_part(), files.new_part()
    after = num_expired = 0
    try:
        while rows := await store.results(batch, after, _CHUNK_LINES):
            answered = [text for _, state, _, text in rows if state is LineState.ANSWERED]
            failed = [text for _, state, _, text in rows if state is LineState.FAILED]
            expired = [custom_id for _, state, custom_id, _ in rows if state is LineState.EXPIRED]
            failed += [error_line(custom_id, "batch_expired", _EXPIRED) for custom_id in expired]
            num_expired += len(expired)
            await asyncio.to_thread(_write, answers, answered)
            await asyncio.to_thread(_write, errors, failed)
            after = rows[-1][0]
        output = [
            (column, part, f"{batch.id}_{name}.jsonl")
            for column, part, name in (("output_file_id", answers, "output"), ("error_file_id", errors, "error"))
            if part.exists()
        ]
        status = _status_of(batch, num_expired)
        await store.finish(batch, status, output)
    finally:
        for part in (answers, errors):
            part.unlink(missing_ok=True)
    files.input_path(batch.id).unlink(missing_ok=True)
    return status


def _status_of(batch: BatchRow, num_expired: int) -> BatchStatus:
    if batch.status == "cancelling":
        return "cancelled"
    # One that was never found valid has nothing to show either.
    return "expired" if num_expired or batch.in_progress_at is None else "completed"


def _write(part: Path, lines: Sequence[bytes]) -> None:
    if lines:
        append(part, b"".join(line + b"\n" for line in lines))
