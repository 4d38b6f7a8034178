"""Lines that go to a provider together: collected across batches and callers, sent, asked for, and taken apart again.

A job is such a batch at a provider. It goes from step to step, each noted before the next begins, so that whoever
takes over goes on where it stands. When a creation was not seen to its end, the provider is asked for it first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from backends.errors import BodyTooLarge, InvalidRequest, SlipstreamError, UnknownObject
from gateway.api.custody import Custody
from gateway.batches.calls import MAX_ATTEMPTS, doubling_pause_s, read_slice
from gateway.batches.file_store import FileStore
from gateway.batches.input_lines import encode_body, read_request
from gateway.batches.job_store import JobStore
from gateway.batches.outcomes import Outcomes
from gateway.batches.output_lines import LineSplitter, result_of_error, results_of_provider
from gateway.batches.provider_api import ProviderApi, ProviderBatch, ProviderBusy, ProviderProblem, ProviderRefused
from gateway.batches.records import JobRow, LineResult, LineRow
from gateway.core import Core
from gateway.http.decode import decode_json
from gateway.runtime import Runtime, Stack
from policies.objects.names import can_name_objects, objects_asked_for

_logger = logging.getLogger(__name__)
_CHUNK_LINES = 200
_MAX_PAUSE_S = 300.0
_MAX_ASKED_S = 3600.0
_DONE = frozenset({"completed", "expired", "cancelled", "failed"})

Named = tuple[tuple[str, str], ...]
"""Fields of a request that name an object, and its id."""


class Provider:
    """All lines of routes with `batch: provider`."""

    def __init__(
        self,
        core: Core,
        files: FileStore,
        jobs: JobStore,
        *,
        outcomes: Outcomes,
    ) -> None:
        self._core = core
        self._custody = Custody(core.owners, core.clock)
        self._files = files
        self._jobs = jobs
        self._outcomes = outcomes

    async def collect(self, spared: Sequence[int]) -> None:
        """Make jobs of what has waited long enough, or is enough for one, but of no batch that is `spared`.

        Raises: StoreUnavailable.
        """
        now = self._core.clock.wall()
        runtime = self._core.runtime
        for group in await self._jobs.groups(routes_with_provider(runtime), spared):
            stack = runtime.stacks[group.route]
            policy = stack.policy.batch
            is_enough = group.num_lines >= policy.max_requests or group.num_bytes >= policy.max_size
            if is_enough or now >= group.since + policy.collect_for:
                backend = _provider_of(stack)
                await self._jobs.collect(group, backend, policy.max_requests, policy.max_size, spared)

    async def step(self, job: JobRow) -> None:
        """Take a job one step on. Raises: StoreUnavailable."""
        core = self._core
        runtime = core.acquire()
        try:
            backend = runtime.leaves.get(job.backend)
            if backend is None:
                raise ProviderBusy(f'the policy has no backend "{job.backend}" any more')
            api = ProviderApi(backend, core.clock)
            await self._advance(job, api, runtime)
        except ProviderBusy as busy:
            asked_s = min(busy.retry_after_s or 0.0, _MAX_ASKED_S)
            pause_s = asked_s or doubling_pause_s(job.attempts, _MAX_PAUSE_S)
            _logger.warning("a batch for %s is tried again in %.0f s: %s", job.backend, pause_s, busy)
            await self._jobs.postpone(job, core.clock.wall() + pause_s)
        except ProviderRefused as refused:
            _logger.error("a batch for %s is refused: %s", job.backend, refused)
            await self._fail(job, "provider_refused", str(refused))
            await self._jobs.settle(job)
        finally:
            runtime.release()

    async def _advance(self, job: JobRow, api: ProviderApi, runtime: Runtime) -> None:
        poll_at = self._core.clock.wall() + self._poll_every(job, runtime)
        is_wanted = await self._jobs.num_open(job) > 0
        if not is_wanted and job.state == "new":
            await self._jobs.settle(job)
        elif job.state == "new":
            num_lines, content = await self._input(job, runtime)
            if not num_lines:
                await self._jobs.settle(job)
                return
            input_file = await api.upload(job.token, content)
            await self._jobs.note_upload(job, input_file, num_lines)
            created = await api.create(input_file, job.endpoint, job.token)
            await self._jobs.update(job, "running", poll_at, upstream_batch=created)
        elif job.state == "uploaded":
            found = await api.find(job.input_file)
            if found is None and not is_wanted:
                await self._clean_up(job, api, [job.input_file])
                return
            created = found or await api.create(job.input_file, job.endpoint, job.token)
            await self._jobs.update(job, "running", poll_at, upstream_batch=created)
        else:
            batch = await api.retrieve(job.upstream_batch)
            if batch.status in _DONE:
                await self._take_apart(job, api, batch)
            elif not is_wanted and job.state == "running":
                await api.cancel(job.upstream_batch)
                await self._jobs.update(job, "cancelling", poll_at)
            else:
                await self._jobs.update(job, job.state, poll_at)

    def _poll_every(self, job: JobRow, runtime: Runtime) -> float:
        stack = runtime.stacks.get(job.route)
        return stack.policy.batch.poll_every if stack is not None else _MAX_PAUSE_S

    async def _input(self, job: JobRow, runtime: Runtime) -> tuple[int, bytes]:
        """What the provider gets, and how many lines: each under an id that says nothing of whose it is.

        A line that names what is kept for another tenant gets its error and does not travel.
        """
        model = _model_at(job, runtime) or job.model
        tenants = await self._jobs.tenants(job)
        parts: list[bytes] = []
        async for page in self._pages(job):
            slices = [(self._files.input_path(batch_id), line) for batch_id, line in page]
            refused: list[LineResult] = []
            lines = await asyncio.to_thread(_provider_lines, slices, job.endpoint, model)
            for (batch_id, line), (written, named) in zip(page, lines, strict=True):
                error = await self._objection(job, tenants[batch_id], named, runtime) if named else None
                if error is None:
                    parts.append(written)
                else:
                    code = error.code or error.reason
                    refused.append(result_of_error(line.id, line.custom_id, code, error.message))
            if refused:
                await self._settle(job, refused)
        return len(parts), b"".join(parts)

    async def _objection(
        self, job: JobRow, tenant: str, named: Named | SlipstreamError, runtime: Runtime
    ) -> SlipstreamError | None:
        """Why a line that names objects is not sent."""
        if isinstance(named, SlipstreamError):
            return named
        stack = runtime.stacks.get(job.route)
        if stack is None:
            return UnknownObject("the route of this request is gone, and with it who may name what")
        try:
            await self._custody.check_named(named, stack, tenant, job.backend)
        except SlipstreamError as error:
            return error
        return None

    async def _take_apart(self, job: JobRow, api: ProviderApi, batch: ProviderBatch) -> None:
        """Give everybody what is theirs of a batch that is over; what has no answer waits again or fails."""
        names = [name for name in (batch.output_file_id, batch.error_file_id) if name]
        for name in names:
            await self._split(job, api, name)
        if batch.status == "failed":
            await self._after_failure(job, batch.problems)
        else:
            code = "batch_expired" if batch.status == "expired" else "provider_no_answer"
            await self._fail(job, code, f"the provider's batch is {batch.status}, without an answer to this request")
        await self._clean_up(job, api, [job.input_file, *names])

    async def _split(self, job: JobRow, api: ProviderApi, file: str) -> None:
        lines = {_upstream_id(line.id): line async for page in self._pages(job) for _, line in page}
        # Nobody gets these, and the ledger has what they cost.
        lines |= {_upstream_id(line.id): line async for page in self._pages(job, left=True) for _, line in page}
        model = job.model if _model_at(job, self._core.runtime) else None
        splitter = LineSplitter(self._core.settings.max_body)

        async def take(told: Sequence[bytes]) -> None:
            if results := await asyncio.to_thread(results_of_provider, told, lines, model):
                await self._settle(job, results)

        try:
            async with aclosing(api.content(file)) as pieces:
                async for piece in pieces:
                    await take(list(splitter.feed(piece)))
            await take(list(splitter.end()))
        except ValueError as error:
            raise ProviderRefused(f"the provider's file cannot be read: {error}") from error

    async def _after_failure(self, job: JobRow, problems: Sequence[ProviderProblem]) -> None:
        """The provider took none of it: lines that it names fail, the others are tried again, a few times."""
        named = [problem for problem in problems if problem.line is not None]
        # Their numbers mean nothing once some of the lines have been dropped.
        is_whole = job.num_lines == await self._jobs.num_open(job)
        by_number = {problem.line: problem for problem in named} if is_whole else {}
        said = next((problem.message for problem in problems if problem.message), "the provider does not say why")
        number = attempts = 0
        async for page in self._pages(job):
            results: list[LineResult] = []
            for _, line in page:
                number += 1
                problem = by_number.get(number)
                if problem is not None or line.attempts + 1 >= MAX_ATTEMPTS:
                    code = (problem.code if problem else None) or "provider_refused"
                    message = (problem.message if problem else None) or said
                    results.append(result_of_error(line.id, line.custom_id, code, message))
                attempts = max(attempts, line.attempts)
            await self._settle(job, results)
        pause_s = 0.0 if by_number else 60.0 * doubling_pause_s(attempts, 60.0)
        await self._jobs.release(job, self._core.clock.wall() + pause_s)

    async def _fail(self, job: JobRow, code: str, message: str) -> None:
        """Every line that has no answer gets this one."""
        async for page in self._pages(job):
            await self._settle(job, [result_of_error(line.id, line.custom_id, code, message) for _, line in page])

    async def _settle(self, job: JobRow, results: Sequence[LineResult]) -> None:
        await self._outcomes.settle(job.route, job.backend, results, job=job.seq)

    async def _clean_up(self, job: JobRow, api: ProviderApi, files: Sequence[str]) -> None:
        """Leave nothing of anybody's with the provider, as far as it lets us."""
        for file in files:
            try:
                await api.delete(file)
            except (ProviderBusy, ProviderRefused) as error:
                _logger.warning("a file stays at %s: %s", job.backend, error)
        await self._jobs.settle(job)

    async def _pages(self, job: JobRow, *, left: bool = False) -> AsyncIterator[Sequence[tuple[str, LineRow]]]:
        """Lines of the job that somebody waits for, or those `left`, with the ids of their batches, some at a time."""
        after = 0
        while rows := await self._jobs.lines(job, after, _CHUNK_LINES, left=left):
            after = rows[-1][1].id
            yield rows


def _provider_lines(
    slices: Sequence[tuple[Path, LineRow]], endpoint: str, model: str
) -> list[tuple[bytes, Named | SlipstreamError]]:
    """Lines as a provider wants them, and the objects that each names, or why that cannot be told. Raises: OSError."""
    lines: list[tuple[bytes, Named | SlipstreamError]] = []
    for path, line in slices:
        request = read_request(read_slice(path, line.offset, line.num_bytes))
        body = request.body
        # It means nothing in a batch.
        body.pop("stream", None)
        wanted: dict[str, Any] = {
            "custom_id": _upstream_id(line.id),
            "method": "POST",
            "url": endpoint,
            "body": msgspec.Raw(encode_body(body, model)),
        }
        lines.append((msgspec.json.encode(wanted) + b"\n", _named_in(request.raw)))
    return lines


def _named_in(raw: bytes) -> Named | SlipstreamError:
    if not can_name_objects(raw):
        return ()
    try:
        body = decode_json(raw)
        return tuple(objects_asked_for(body)) if isinstance(body, dict) else ()
    except (BodyTooLarge, InvalidRequest) as error:
        return error


def routes_with_provider(runtime: Runtime) -> list[str]:
    """Names of the routes whose lines are collected."""
    return [route.name for route in runtime.loaded.policy.routes if route.batch.mode == "provider"]


def _provider_of(stack: Stack) -> str:
    """The backend that a route's lines go to: the first in rotation."""
    parts = sorted(stack.policy.backends, key=lambda part: (part.weight == 0, part.priority, -part.weight))
    return parts[0].ref


def _model_at(job: JobRow, runtime: Runtime) -> str | None:
    """The model's name at the provider, where the route has another one for it."""
    stack = runtime.stacks.get(job.route)
    parts = stack.policy.backends if stack is not None else ()
    return next((part.model for part in parts if part.ref == job.backend), None)


def _upstream_id(line: int) -> str:
    return f"line-{line}"
