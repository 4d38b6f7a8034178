"""A provider with a Files and Batches API, on a real socket, that does with a batch what a test says.

async with BatchProvider(port) as provider:
    provider.is_held = True  # batches stay in progress
    ...
    assert provider.batches[0].lines[0]["body"]["model"] == "real"
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Line = dict[str, Any]


@dataclass(slots=True)
class ProviderBatch:
    """A batch as it was made here."""

    id: str
    input_file_id: str
    endpoint: str
    lines: list[Line]
    status: str = "in_progress"
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)

    def shown(self) -> dict[str, Any]:
        """As OpenAI shows it."""
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": self.status,
            "created_at": 1_700_000_000,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
        }


def chat_answer(body: dict[str, Any]) -> dict[str, Any]:
    """A chat completion that says what the last message said; 10 prompt tokens, 4 of them kept, 5 of an answer."""
    message = {"role": "assistant", "content": f"re: {body['messages'][-1]['content']}", "refusal": None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    }


def answered(line: Line) -> Line:
    """A line's answer, as a provider writes it."""
    response = {"status_code": 200, "request_id": "up-1", "body": chat_answer(line["body"])}
    return {"id": "batch_req_up", "custom_id": line["custom_id"], "response": response, "error": None}


class _Server(uvicorn.Server):
    """Leaves signals alone: they are the test run's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class BatchProvider:
    """Listens on that port of the loopback interface while entered. What it holds outlives leaving and coming back."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.files: dict[str, bytes] = {}
        self.batches: list[ProviderBatch] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.live: list[dict[str, Any]] = []
        """Bodies of live calls, as they came."""
        self.is_held = False
        """Batches stay in progress."""
        self.answer: Callable[[Line], Line] = answered
        self.refusals: dict[str, list[Response]] = {}
        """What the next requests get instead, by method and first part of the path: "POST /batches"."""
        self.forgets_to_answer = False
        """The next batch is made, but who asked for it is told of an error."""
        self.live_gate = asyncio.Event()
        self.live_gate.set()
        """Live calls wait for it."""
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None
        everything = ["GET", "POST", "DELETE"]
        self._application = Starlette(routes=[Route("/v1/{path:path}", self._serve, methods=everything)])

    async def __aenter__(self) -> Self:
        config = uvicorn.Config(
            self._application, port=self.port, log_config=None, lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve())
        while not self._server.started:
            await asyncio.sleep(0.01)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        assert self._task is not None
        self.live_gate.set()
        self._server.should_exit = True
        await self._task

    def finish(self, batch: ProviderBatch, status: str = "completed") -> None:
        """Bring a batch to its end, each line answered as `answer` says; errors go to a file of their own."""
        good: list[Line] = []
        bad: list[Line] = []
        for line in map(self.answer, batch.lines):
            is_good = line["response"] is not None and line["response"]["status_code"] == 200
            (good if is_good else bad).append(line)
        batch.output_file_id = self._keep("output", good) if good else None
        batch.error_file_id = self._keep("error", bad) if bad else None
        batch.status = status

    async def wait_batches(self, count: int = 1, timeout_s: float = 10.0) -> ProviderBatch:
        """The batch of that number, once it is here. Raises: TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while len(self.batches) < count:
                await asyncio.sleep(0.01)
        return self.batches[count - 1]

    def _keep(self, kind: str, lines: list[Line]) -> str:
        name = f"file-{kind}-{len(self.files)}"
        self.files[name] = "".join(json.dumps(line) + "\n" for line in reversed(lines)).encode()
        return name

    async def _serve(self, request: Request) -> Response:
        path = request.path_params["path"]
        root, _, rest = path.partition("/")
        self.requests.append((request.method, f"/{path}", dict(request.headers)))
        planned = self.refusals.get(f"{request.method} /{root}")
        if planned:
            await request.body()
            return planned.pop(0)
        if root == "files":
            return await self._serve_files(request, rest)
        if root == "batches":
            return await self._serve_batches(request, rest)
        body = await request.json()
        self.live.append(body)
        await self.live_gate.wait()
        return JSONResponse(chat_answer(body))

    async def _serve_files(self, request: Request, rest: str) -> Response:
        name = rest.partition("/")[0]
        if request.method == "POST":
            async with request.form() as form:
                assert form["purpose"] == "batch"
                name = f"file-input-{len(self.files)}"
                self.files[name] = await form["file"].read()  # type: ignore[union-attr]  # a file, not a text
            return JSONResponse({"id": name, "object": "file"})
        if name not in self.files:
            return _missing()
        if request.method == "DELETE":
            del self.files[name]
            return JSONResponse({"id": name, "object": "file", "deleted": True})
        return Response(self.files[name], media_type="application/octet-stream")

    async def _serve_batches(self, request: Request, rest: str) -> Response:
        name, _, below = rest.partition("/")
        if request.method == "GET" and not name:
            return JSONResponse(
                {"object": "list", "data": [batch.shown() for batch in reversed(self.batches)], "has_more": False}
            )
        if request.method == "POST" and not name:
            wanted = await request.json()
            lines = [json.loads(line) for line in self.files[wanted["input_file_id"]].splitlines()]
            made = ProviderBatch(f"batch_up{len(self.batches)}", wanted["input_file_id"], wanted["endpoint"], lines)
            self.batches.append(made)
            if self.forgets_to_answer:
                self.forgets_to_answer = False
                return JSONResponse({"error": {"message": "a bad gateway", "type": "server_error"}}, 502)
            return JSONResponse(made.shown())
        batch = next((batch for batch in self.batches if batch.id == name), None)
        if batch is None:
            return _missing()
        if below == "cancel":
            batch.status = "cancelled"
        elif batch.status == "in_progress" and not self.is_held:
            self.finish(batch)
        return JSONResponse(batch.shown())


def _missing() -> Response:
    return JSONResponse({"error": {"message": "no such thing", "type": "invalid_request_error"}}, 404)
