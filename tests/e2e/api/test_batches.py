"""/v1/files and /v1/batches as OpenAI's own client uses them, before a provider with a Batch API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai as sdk
import pytest
from openai import AsyncOpenAI
from openai.types import Batch
from starlette.responses import JSONResponse

from tests.e2e.test_ledger import exported
from tests.support.gateway import Gateway, reserved_port, running_gateway, start_gateway
from tests.support.servers.batch_provider import BatchProvider, answered

ENVIRON = {
    "UPSTREAM_KEY": "sk-upstream-0123",
    "RED_KEY": "sk-red-0123456789",
    "BLUE_KEY": "sk-blue-0123456789",
    "SMALL_KEY": "sk-small-0123456789",
    "NARROW_KEY": "sk-narrow-0123456789",
}
POLICY = """
version: 1
backends:
  up: {{type: openai, base_url: "http://127.0.0.1:{port}/v1", api_key: "env:UPSTREAM_KEY"}}
  own: {{type: scripted}}
keys:
  - {{name: red, key: "env:RED_KEY", tenant: red}}
  - {{name: blue, key: "env:BLUE_KEY", tenant: blue}}
  - {{name: small, key: "env:SMALL_KEY", tenant: small}}
  - {{name: narrow, key: "env:NARROW_KEY", tenant: red, models: ["live"]}}
stores:
  batches: {{folder: "{folder}", max_file: 1MiB, max_files: 80, max_size: 4MiB, max_batches: 20}}
defaults:
  retry: {{attempts: 0}}
routes:
  - name: batched
    match: {{models: ["cheap"]}}
    backends: [{{ref: up, model: real/cheap, price: {{input_per_1m: 100000, output_per_1m: 1000000}}}}]
    batch: {{mode: provider, collect_for: {collect_for}, poll_every: 50ms, discount: 0.5}}
  - name: live
    match: {{models: ["live"]}}
    backends: [{{ref: up}}]
    batch: {{at_once: 3}}
  - name: scripted
    match: {{models: ["scripted"]}}
    backends: [{{ref: own}}]
"""
COLLECT_FOR = "300ms"


@pytest.fixture(scope="module")
def provider_port() -> Iterator[int]:
    """Where the gateways look for the provider."""
    with reserved_port() as port:
        yield port


@pytest.fixture(scope="module")
def gateway(provider_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that these tests share."""
    folder = tmp_path_factory.mktemp("batches")
    policy = POLICY.format(port=provider_port, folder=folder, collect_for=COLLECT_FOR)
    policy += f'ledger: {{url: "sqlite:///{folder / "ledger.sqlite3"}"}}\n'
    with running_gateway(policy, environ=ENVIRON) as gateway:
        yield gateway


@pytest.fixture
async def provider(provider_port: int) -> AsyncIterator[BatchProvider]:
    """This test's own provider."""
    async with BatchProvider(provider_port) as provider:
        yield provider


@asynccontextmanager
async def client_of(gateway: Gateway, key: str = "RED_KEY") -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's own client with that key, without retries."""
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=ENVIRON[key], max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture
async def red(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    """A client of the tenant red."""
    async with client_of(gateway) as client:
        yield client


@pytest.fixture
async def blue(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    """A client of the tenant blue."""
    async with client_of(gateway, "BLUE_KEY") as client:
        yield client


def line(custom_id: str, text: str = "hello", *, model: str = "cheap", **more: object) -> dict[str, Any]:
    """A line of a batch's input."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], **more}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def jsonl(lines: Sequence[object]) -> bytes:
    """Lines as a file."""
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


async def make(client: AsyncOpenAI, lines: Sequence[object], **more: Any) -> Batch:
    """Upload these lines and make a batch of them."""
    file = await client.files.create(file=("input.jsonl", jsonl(lines)), purpose="batch")
    wanted = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **more}
    return await client.batches.create(input_file_id=file.id, **wanted)


async def wait(client: AsyncOpenAI, batch: Batch, *statuses: str, timeout_s: float = 15.0) -> Batch:
    """The batch once it has one of these statuses. Raises: TimeoutError."""
    wanted = statuses or ("completed",)
    async with asyncio.timeout(timeout_s):
        while (found := await client.batches.retrieve(batch.id)).status not in wanted:
            assert found.status not in ("failed", "expired", "cancelled"), found
            await asyncio.sleep(0.05)
    return found


async def results(client: AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    """The lines of an output or error file, by custom id."""
    assert file_id is not None
    text = (await client.files.content(file_id)).text
    lines = [json.loads(found) for found in text.splitlines()]
    by_id = {found["custom_id"]: found for found in lines}
    assert len(by_id) == len(lines)
    return by_id


async def test_batch_of_a_provider_route_lives_its_whole_life(red: AsyncOpenAI, provider: BatchProvider) -> None:
    """Upload, create, poll, read: answers in the order of the input, under the client's ids and model name."""
    batch = await make(red, [line(f"r-{number}", f"text {number}") for number in range(5)], metadata={"job": "7"})
    assert batch.status == "validating"
    done = await wait(red, batch)

    found = await results(red, done.output_file_id)
    assert list(found) == [f"r-{number}" for number in range(5)]
    body = found["r-3"]["response"]["body"]
    assert body["choices"][0]["message"]["content"] == "re: text 3"
    assert body["model"] == "cheap"
    assert found["r-3"]["response"]["status_code"] == 200
    assert found["r-3"]["error"] is None
    assert done.error_file_id is None
    assert done.metadata == {"job": "7"}
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (5, 5, 0)
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.output_tokens, done.usage.total_tokens) == (50, 25, 75)
    assert done.usage.input_tokens_details.cached_tokens == 20
    assert done.usage.output_tokens_details.reasoning_tokens == 10
    # 50 tokens at 0.1 and 25 at 1, and half of it taken off.
    assert done.to_dict()["cost"] == 15.0
    sent = provider.batches[0].lines
    assert {one["body"]["model"] for one in sent} == {"real/cheap"}
    assert provider.live == []
    assert provider.files == {}, "the provider keeps nothing of it"


async def test_batch_lines_of_other_routes_are_calls_of_their_own(
    red: AsyncOpenAI, provider: BatchProvider, gateway: Gateway
) -> None:
    """One batch for several routes: an HTTP upstream's, the built-in backend's, and a provider's."""
    lines = [line("a", model="live"), line("b", model="scripted"), line("c", model="cheap")]
    done = await wait(red, await make(red, lines))

    found = await results(red, done.output_file_id)
    assert list(found) == ["a", "b", "c"]
    assert found["a"]["response"]["body"]["choices"][0]["message"]["content"] == "re: hello"
    assert "hello" in found["b"]["response"]["body"]["choices"][0]["message"]["content"]
    assert [body["model"] for body in provider.live] == ["live"]
    logged = await gateway.wait_log(lambda line: line["route"] == "live" and line["status"] == 200)
    assert logged["request_id"].startswith("batch_")
    assert (logged["key"], logged["tenant"]) == ("red", "red")


async def test_batches_of_two_tenants_go_together_and_come_back_apart(
    red: AsyncOpenAI, blue: AsyncOpenAI, provider: BatchProvider
) -> None:
    """One batch at the provider, in which nothing tells whose a line is; each gets its own under its own ids."""
    first, second = await asyncio.gather(
        make(red, [line("same", "of red"), line("more", "red too")]), make(blue, [line("same", "of blue")])
    )
    done_red, done_blue = await asyncio.gather(wait(red, first), wait(blue, second))

    assert len(provider.batches) == 1
    sent = json.dumps(provider.batches[0].lines)
    assert "same" not in sent
    assert '"red"' not in sent
    of_red, of_blue = await results(red, done_red.output_file_id), await results(blue, done_blue.output_file_id)
    assert of_red["same"]["response"]["body"]["choices"][0]["message"]["content"] == "re: of red"
    assert of_blue["same"]["response"]["body"]["choices"][0]["message"]["content"] == "re: of blue"
    assert list(of_red) == ["same", "more"]


async def test_line_that_a_provider_answered_has_one_row_in_the_ledger(
    red: AsyncOpenAI, blue: AsyncOpenAI, provider: BatchProvider, gateway: Gateway
) -> None:
    """Of the key that made its batch, with what the provider said it used; a line that was a call has one too."""
    first, second, third = await asyncio.gather(
        make(red, [line("a"), line("b")]), make(blue, [line("a")]), make(red, [line("c", model="scripted")])
    )
    done = await asyncio.gather(wait(red, first), wait(blue, second), wait(red, third))

    ids = tuple(batch.id for batch in done)
    async with asyncio.timeout(20):
        while len(rows := [row for row in exported(gateway, ENVIRON) if row["request_id"].startswith(ids)]) < 4:
            await asyncio.sleep(0.1)
    rows.sort(key=lambda row: ids.index(row["request_id"][: len(ids[0])]))
    assert [row["tenant"] for row in rows] == ["red", "red", "blue", "red"]
    assert [row["kind"] for row in rows] == ["batch"] * 3 + ["call"]
    assert {(row["backend"], row["model"], row["operation"]) for row in rows[:3]} == {("up", "cheap", "chat")}
    for batch, own in ((done[0], rows[:2]), (done[1], rows[2:3])):
        assert batch.usage is not None
        assert sum(row["input_tokens"] for row in own) == batch.usage.input_tokens
        assert sum(row["output_tokens"] for row in own) == batch.usage.output_tokens


async def test_line_that_names_what_another_tenant_may_have_does_not_travel(
    red: AsyncOpenAI, provider: BatchProvider
) -> None:
    """Nobody is known to have made the file at the provider; the other lines are answered."""
    part = {"type": "file", "file": {"file_id": "file-of-blue"}}
    naming = line("naming")
    naming["body"]["messages"][0]["content"] = [part]
    done = await wait(red, await make(red, [line("plain"), naming]))

    assert [len(batch.lines) for batch in provider.batches] == [1]
    assert "file-of-blue" not in json.dumps(provider.batches[0].lines)
    assert list(await results(red, done.output_file_id)) == ["plain"]
    failed = (await results(red, done.error_file_id))["naming"]
    assert failed["error"]["code"] == "not_found"
    only = await wait(red, await make(red, [naming]))
    assert only.request_counts is not None
    assert (only.request_counts.failed, len(provider.batches)) == (1, 1)


async def test_batches_and_files_of_another_tenant_are_not_there(
    red: AsyncOpenAI, blue: AsyncOpenAI, provider: BatchProvider
) -> None:
    """Every way of asking for somebody else's is a 404, and lists do not show it."""
    batch = await make(red, [line("a", model="scripted")])
    done = await wait(red, batch)
    assert done.output_file_id is not None

    for attempt in (
        lambda: blue.batches.retrieve(batch.id),
        lambda: blue.batches.cancel(batch.id),
        lambda: blue.batches.list(after=batch.id),
        lambda: blue.files.retrieve(done.input_file_id),
        lambda: blue.files.content(done.output_file_id or ""),
        lambda: blue.files.delete(done.output_file_id or ""),
        lambda: blue.batches.create(
            input_file_id=done.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
        ),
    ):
        with pytest.raises(sdk.NotFoundError):
            await attempt()
    assert batch.id not in [found.id async for found in blue.batches.list()]
    assert done.input_file_id not in [found.id async for found in blue.files.list()]
    assert (await red.files.content(done.output_file_id)).text


async def test_batch_with_bad_lines_fails_and_names_them(red: AsyncOpenAI, provider: BatchProvider) -> None:
    """Each problem has its line and its field, and nothing was asked of anybody."""
    good = line("a")
    lines: list[object] = [
        good,
        line("a"),
        {**line("c"), "method": "GET"},
        {**line("d"), "url": "/v1/embeddings"},
        {name: value for name, value in line("e").items() if name != "custom_id"},
        {**line("f"), "body": {"messages": []}},
        line("g", model="nobody's"),
        line("h", stream=True),
        [1],
    ]
    failed = await wait(red, await make(red, lines), "failed")

    assert failed.errors is not None
    told = {(problem.line, problem.code, problem.param) for problem in failed.errors.data or []}
    assert told == {
        (2, "duplicate_custom_id", "custom_id"),
        (3, "invalid_method", "method"),
        (4, "invalid_url", "url"),
        (5, "missing_required_parameter", "custom_id"),
        (6, "missing_required_parameter", "body.model"),
        (7, "model_not_found", "body.model"),
        (8, "invalid_value", "body.stream"),
        (9, "invalid_json_line", None),
    }
    assert failed.output_file_id is None
    assert provider.requests == []


async def test_batch_respects_the_models_of_its_key(gateway: Gateway, provider: BatchProvider) -> None:
    """A key for certain models gets no other by way of a batch."""
    async with client_of(gateway, "NARROW_KEY") as narrow:
        failed = await wait(narrow, await make(narrow, [line("a", model="cheap")]), "failed")

    assert failed.errors is not None
    assert [problem.code for problem in failed.errors.data or []] == ["model_not_found"]


async def test_batch_line_that_is_refused_is_in_the_error_file(red: AsyncOpenAI, provider: BatchProvider) -> None:
    """By the gateway for its fields, or by the provider: the others have their answers."""

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        if asked["body"]["messages"][-1]["content"] != "bad":
            return answered(asked)
        refusal = {"status_code": 400, "request_id": "up-2", "body": {"error": {"message": "no", "code": "x"}}}
        return {"id": "q", "custom_id": asked["custom_id"], "response": refusal, "error": None}

    provider.answer = answer
    broken = line("own", model="live")
    broken["body"]["messages"] = "none"
    done = await wait(red, await make(red, [line("ok"), line("theirs", "bad"), broken]))

    assert list(await results(red, done.output_file_id)) == ["ok"]
    errors = await results(red, done.error_file_id)
    assert list(errors) == ["theirs", "own"]
    assert errors["theirs"]["response"]["status_code"] == 400
    assert errors["theirs"]["response"]["body"]["error"]["code"] == "x"
    assert errors["own"]["response"]["status_code"] == 400
    assert errors["own"]["response"]["body"]["error"]["param"] == "messages"
    assert done.request_counts is not None
    assert (done.request_counts.completed, done.request_counts.failed) == (1, 2)


async def test_batch_line_names_no_file_of_another_tenant(red: AsyncOpenAI, provider: BatchProvider) -> None:
    """As in any other call: what it has not made is not there."""
    messages = [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-of-nobody"}}]}]
    asked = line("a", model="live")
    asked["body"]["messages"] = messages
    batch = await wait(red, await make(red, [asked]), "completed")
    failed = await results(red, batch.error_file_id)

    assert failed["a"]["response"]["status_code"] == 404
    assert failed["a"]["response"]["body"]["error"]["code"] == "not_found"


async def test_batch_calls_wait_out_429_and_have_few_at_once(
    red: AsyncOpenAI, provider: BatchProvider, gateway: Gateway
) -> None:
    """Retry-After is kept, no line is lost, and no more go at once than the route allows."""
    busy = {"error": {"message": "slow down", "type": "rate_limit_error"}}
    provider.refusals["POST /chat"] = [JSONResponse(busy, 429, {"retry-after-ms": "100"}) for _ in range(4)]
    provider.live_gate.clear()
    batch = await make(red, [line(f"n-{number}", model="live") for number in range(10)])
    async with asyncio.timeout(10):
        while len(provider.live) < 3:
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.04)
    at_once = len(provider.live)
    provider.live_gate.set()
    done = await wait(red, batch)

    assert at_once == 3
    assert len(await results(red, done.output_file_id)) == 10
    assert done.error_file_id is None
    assert len(provider.live) == 10


async def test_batch_cancel_drops_what_is_not_answered_and_cancels_upstream(
    red: AsyncOpenAI, provider: BatchProvider
) -> None:
    """A batch at the provider that holds nothing else any more is cancelled there."""
    provider.is_held = True
    batch = await make(red, [line("a"), line("b", model="scripted")])
    upstream = await provider.wait_batches()
    await wait_counts(red, batch, completed=1)
    cancelling = await red.batches.cancel(batch.id)
    done = await wait(red, batch, "cancelled")

    assert cancelling.status == "cancelling"
    assert list(await results(red, done.output_file_id)) == ["b"]
    assert done.error_file_id is None
    async with asyncio.timeout(5):
        while upstream.status != "cancelled" or provider.files:
            await asyncio.sleep(0.02)
    with pytest.raises(sdk.BadRequestError):
        await red.batches.cancel(batch.id)


async def test_batch_cancel_leaves_the_lines_of_others_with_the_provider(
    red: AsyncOpenAI, blue: AsyncOpenAI, provider: BatchProvider
) -> None:
    """What red cancels is dropped from the results; blue gets what is blue's."""
    provider.is_held = True
    of_red, of_blue = await asyncio.gather(make(red, [line("r")]), make(blue, [line("b")]))
    upstream = await provider.wait_batches()
    await red.batches.cancel(of_red.id)
    cancelled = await wait(red, of_red, "cancelled")
    provider.is_held = False
    done = await wait(blue, of_blue)

    assert len(upstream.lines) == 2
    assert upstream.status == "completed"
    assert cancelled.output_file_id is None
    assert list(await results(blue, done.output_file_id)) == ["b"]


async def test_line_that_nobody_waits_for_has_its_row_where_its_provider_answered_it(
    red: AsyncOpenAI, blue: AsyncOpenAI, provider: BatchProvider, gateway: Gateway
) -> None:
    """It is paid for all the same; what a provider has not answered costs nothing and has none."""
    provider.is_held = True
    of_red, of_blue = await asyncio.gather(
        # Collected at least once a second, so no line expires before the provider has it.
        make(red, [line("r"), line("s", "slow")], completion_window="5s"),
        make(blue, [line("b")]),
    )
    async with asyncio.timeout(4):
        while sum(len(upstream.lines) for upstream in provider.batches) < 3:
            await asyncio.sleep(0.02)
    for upstream in provider.batches:
        upstream.lines = [each for each in upstream.lines if each["body"]["messages"][-1]["content"] != "slow"]
        provider.finish(upstream, "in_progress")
    await wait(red, of_red, "expired")
    await blue.batches.cancel(of_blue.id)
    await wait(blue, of_blue, "cancelled")
    async with asyncio.timeout(5):
        while provider.files or any(upstream.status != "cancelled" for upstream in provider.batches):
            await asyncio.sleep(0.02)
    ids = (of_red.id, of_blue.id)
    async with asyncio.timeout(20):
        while len(rows := [row for row in exported(gateway, ENVIRON) if row["request_id"].startswith(ids)]) < 2:
            await asyncio.sleep(0.1)

    assert sorted((row["tenant"], row["end"], row["output_tokens"]) for row in rows) == [
        ("blue", "clean", 5),
        ("red", "clean", 5),
    ]


async def test_batch_whose_creation_was_not_seen_to_its_end_is_found_again(
    red: AsyncOpenAI, provider: BatchProvider
) -> None:
    """The provider made it and the answer was lost: it is not made a second time."""
    provider.forgets_to_answer = True
    done = await wait(red, await make(red, [line("a")]))

    assert len(provider.batches) == 1
    assert list(await results(red, done.output_file_id)) == ["a"]


async def test_batch_that_the_provider_fails_is_sent_again_without_the_lines_it_names(
    red: AsyncOpenAI, provider: BatchProvider
) -> None:
    """Lines it names have its error; the others are answered with the next one."""
    provider.is_held = True
    batch = await make(red, [line("a"), line("b"), line("c")])
    upstream = await provider.wait_batches()
    upstream.errors = [{"code": "invalid_value", "message": "bad b", "param": "body", "line": 2}]
    upstream.status = "failed"
    provider.is_held = False
    done = await wait(red, batch)

    assert [len(made.lines) for made in provider.batches] == [3, 2]
    assert list(await results(red, done.output_file_id)) == ["a", "c"]
    errors = await results(red, done.error_file_id)
    assert errors["b"]["error"] == {"code": "invalid_value", "message": "bad b"}


async def test_batch_that_the_provider_refuses_has_its_word_for_each_line(
    red: AsyncOpenAI, provider: BatchProvider
) -> None:
    """A definite no is not asked again."""
    no = {"error": {"message": "no batches for you", "type": "invalid_request_error"}}
    provider.refusals["POST /batches"] = [JSONResponse(no, 400)]
    done = await wait(red, await make(red, [line("a"), line("b")]))

    errors = await results(red, done.error_file_id)
    assert {found["error"]["code"] for found in errors.values()} == {"provider_refused"}
    assert "no batches for you" in errors["a"]["error"]["message"]


async def test_batch_expires_with_its_window(red: AsyncOpenAI, provider: BatchProvider) -> None:
    """What has no answer by then says so, what has one is kept, and the provider is told."""
    provider.is_held = True
    batch = await make(red, [line("late"), line("early", model="scripted")], completion_window="5s")
    upstream = await provider.wait_batches()
    done = await wait(red, batch, "expired")

    assert list(await results(red, done.output_file_id)) == ["early"]
    errors = await results(red, done.error_file_id)
    assert errors["late"]["error"]["code"] == "batch_expired"
    assert errors["late"]["response"] is None
    async with asyncio.timeout(5):
        while upstream.status != "cancelled":
            await asyncio.sleep(0.02)


async def test_batches_are_listed_newest_first_in_pages(gateway: Gateway, provider: BatchProvider) -> None:
    """`after` and `limit`, as the client's own pagination uses them."""
    async with client_of(gateway, "SMALL_KEY") as small:
        made = [await make(small, [line("a", model="scripted")]) for _ in range(5)]
        page = await small.batches.list(limit=2)
        everything = [found.id async for found in small.batches.list(limit=2)]

        assert [found.id for found in page.data] == [made[4].id, made[3].id]
        assert page.has_more
        assert everything == [batch.id for batch in reversed(made)]
        files = [found.id async for found in small.files.list(limit=3, purpose="batch", order="asc")]
        assert files[:2] == [made[0].input_file_id, made[1].input_file_id]
        for batch in made:
            await wait(small, batch)


async def test_files_are_kept_listed_read_and_deleted(red: AsyncOpenAI, provider: BatchProvider) -> None:
    """The life of a file by itself."""
    content = jsonl([line("a")]) + "ü\n".encode()
    made = await red.files.create(
        file=("my input.jsonl", content),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 7200},
    )
    found = await red.files.retrieve(made.id)
    read = (await red.files.content(made.id)).content
    deleted = await red.files.delete(made.id)

    assert (found.filename, found.bytes, found.purpose, found.status) == (
        "my input.jsonl",
        len(content),
        "batch",
        "processed",
    )
    assert found.expires_at == found.created_at + 7200
    assert read == content
    assert deleted.deleted
    with pytest.raises(sdk.NotFoundError):
        await red.files.retrieve(made.id)


async def test_batch_goes_on_when_its_input_file_is_deleted(red: AsyncOpenAI, provider: BatchProvider) -> None:
    """A batch has the bytes of its own."""
    batch = await make(red, [line("a"), line("b")])
    await red.files.delete(batch.input_file_id)
    done = await wait(red, batch)

    assert list(await results(red, done.output_file_id)) == ["a", "b"]


@pytest.mark.parametrize(
    ("purpose", "content", "status"),
    [("assistants", b"{}", 400), ("batch", b"x" * (1024**2 + 1), 413), ("batch", b"x" * (2 * 1024**2), 413)],
)
async def test_file_that_is_not_taken_is_refused(
    red: AsyncOpenAI, provider: BatchProvider, purpose: Any, content: bytes, status: int
) -> None:
    """Another purpose, or too large."""
    with pytest.raises(sdk.APIStatusError) as refused:
        await red.files.create(file=("f", content), purpose=purpose)

    assert refused.value.status_code == status


async def test_file_over_the_quota_is_refused(gateway: Gateway, provider: BatchProvider) -> None:
    """A tenant's bytes have an end; deleting makes room."""
    async with client_of(gateway, "BLUE_KEY") as blue:
        files = []
        refused: sdk.BadRequestError | None = None
        while refused is None and len(files) < 5:
            try:
                files.append(await blue.files.create(file=("f", b"x" * 1024**2), purpose="batch"))
            except sdk.BadRequestError as error:
                refused = error

        assert refused is not None
        assert refused.code == "quota_exceeded"
        assert 2 <= len(files) <= 4
        for file in files:
            await blue.files.delete(file.id)
        assert await blue.files.create(file=("f", b"x"), purpose="batch")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"completion_window": "never"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"input_file_id": 7}, "input_file_id"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after"),
    ],
)
async def test_batch_that_cannot_be_is_refused(
    red: AsyncOpenAI, provider: BatchProvider, change: dict[str, Any], param: str
) -> None:
    """A 400 that names the field."""
    wanted: dict[str, Any] = {
        "input_file_id": "file-1",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    with pytest.raises(sdk.BadRequestError) as refused:
        await red.batches.create(**{**wanted, **change})

    assert refused.value.param == param


async def test_batches_without_a_key_are_refused(gateway: Gateway, provider: BatchProvider) -> None:
    """As everything else is."""
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="sk-nobody", max_retries=0) as nobody:
        with pytest.raises(sdk.AuthenticationError):
            await nobody.batches.list()
        with pytest.raises(sdk.AuthenticationError):
            await nobody.files.create(file=("f", b"x"), purpose="batch")


async def test_batch_leaves_its_figures_and_no_secret(
    red: AsyncOpenAI, provider: BatchProvider, gateway: Gateway
) -> None:
    """Lines, tokens and cost are counted; logs hold neither keys nor prompts."""
    before = (await gateway.metrics()).value("slipstream_batches_cost_total", route="batched")
    await wait(red, await make(red, [line("a", "a very private question")]))
    after = await gateway.metrics()

    assert after.value("slipstream_batches_cost_total", route="batched") - before == pytest.approx(3.0)
    assert after.value("slipstream_batches_lines_total", route="batched", how="answered") >= 1
    assert after.value("slipstream_batches_tokens_total", route="batched", kind="prompt") >= 10
    assert after.value("slipstream_batches_ended_total", status="completed") >= 1
    said = gateway.stderr + gateway.stdout
    assert "private question" not in said
    assert not any(key in said for key in ENVIRON.values())
    assert all(headers.get("authorization") == "Bearer sk-upstream-0123" for _, _, headers in provider.requests)


async def wait_counts(client: AsyncOpenAI, batch: Batch, *, completed: int) -> None:
    """Until so many lines are answered. Raises: TimeoutError."""
    async with asyncio.timeout(10):
        while (found := (await client.batches.retrieve(batch.id)).request_counts) is None or (
            found.completed < completed
        ):
            await asyncio.sleep(0.02)


async def test_batch_survives_that_its_gateway_is_killed(provider_port: int, tmp_path: Path) -> None:
    """A new process goes on: with the provider's batch, and with calls that were in flight; each line once."""
    policy = POLICY.format(port=provider_port, folder=tmp_path, collect_for=COLLECT_FOR)
    async with BatchProvider(provider_port) as provider:
        provider.is_held = True
        async with start_gateway(policy, environ=ENVIRON) as first, client_of(first) as client:
            lines = [line(f"p-{number}") for number in range(3)]
            lines += [line(f"s-{number}", model="scripted") for number in range(2)]
            provider.live_gate.clear()
            batch = await make(client, [*lines, line("flying", model="live")])
            await provider.wait_batches()
            await wait_counts(client, batch, completed=2)
            async with asyncio.timeout(5):
                while not provider.live:
                    await asyncio.sleep(0.02)
            first.process.kill()
            await first.wait_exit()
        provider.live_gate.set()
        provider.is_held = False
        async with start_gateway(policy, environ=ENVIRON) as second, client_of(second) as client:
            done = await wait(client, batch)

            assert len(provider.batches) == 1
            assert len(provider.live) == 2
            found = await results(client, done.output_file_id)
            assert list(found) == [one["custom_id"] for one in [*lines, line("flying")]]
            assert done.request_counts is not None
            assert (done.request_counts.completed, done.request_counts.failed) == (6, 0)


async def test_batch_waits_for_a_provider_that_is_down(provider_port: int, tmp_path: Path) -> None:
    """Nothing fails while nobody answers there; when it is back, everything is answered."""
    policy = POLICY.format(port=provider_port, folder=tmp_path, collect_for=COLLECT_FOR)
    async with start_gateway(policy, environ=ENVIRON) as gateway, client_of(gateway) as client:
        batch = await make(client, [line("a"), line("b", model="live")])
        await gateway.wait_stderr("a batch for up is tried again")
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        async with BatchProvider(provider_port):
            done = await wait(client, batch)

            assert list(await results(client, done.output_file_id)) == ["a", "b"]
            assert done.error_file_id is None


async def test_batches_of_several_workers_are_driven_by_one(provider_port: int, tmp_path: Path) -> None:
    """Whichever process a client meets, each line is asked once."""
    policy = POLICY.format(port=provider_port, folder=tmp_path, collect_for=COLLECT_FOR)
    async with BatchProvider(provider_port) as provider:
        async with start_gateway(policy, environ=ENVIRON, args=["--workers", "2"]) as gateway:
            async with client_of(gateway) as client:
                lines = [line(f"n-{number}", model="live") for number in range(6)]
                made = [await make(client, [*lines, line("p")]) for _ in range(3)]
                for batch in made:
                    done = await wait(client, batch)
                    assert len(await results(client, done.output_file_id)) == 7

        assert len(provider.live) == 18
        assert sum(len(made.lines) for made in provider.batches) == 3


async def test_live_calls_of_a_provider_route_go_as_always(red: AsyncOpenAI, provider: BatchProvider) -> None:
    """Only lines of batches are collected."""
    answer = await red.chat.completions.create(model="cheap", messages=[{"role": "user", "content": "now"}])

    assert answer.choices[0].message.content == "re: now"
    assert provider.batches == []


async def test_batch_lines_of_tenants_are_answered_in_turn(
    red: AsyncOpenAI, blue: AsyncOpenAI, provider: BatchProvider
) -> None:
    """One line of blue's does not wait for the many of red's that came before."""
    provider.live_gate.clear()
    many = await make(red, [line(f"n-{number}", "red", model="live") for number in range(30)])
    async with asyncio.timeout(10):
        while len(provider.live) < 3:
            await asyncio.sleep(0.02)
    single = await make(blue, [line("own", model="scripted"), line("one", "blue", model="live")])
    # By then those who answer for the other route know of this batch too.
    await wait_counts(blue, single, completed=1)
    provider.live_gate.set()
    await asyncio.gather(wait(red, many), wait(blue, single))

    asked = [body["messages"][-1]["content"] for body in provider.live]
    assert asked.index("blue") < 10


async def test_batch_provider_of_another_type_is_refused(tmp_path: Path) -> None:
    """A backend without a Batch API is named at the start, not after the first batch."""
    policy = POLICY.format(port=1, folder=tmp_path, collect_for=COLLECT_FOR)
    policy += "    batch: provider\n"
    with pytest.raises(AssertionError, match='batch: provider needs backends of type openai, which "own" is not'):
        async with start_gateway(policy, environ=ENVIRON):
            pass


async def test_batch_follows_a_policy_that_changes(provider_port: int, tmp_path: Path) -> None:
    """Lines that wait go where the changed policy sends them; those of a key that is gone are refused."""
    policy = POLICY.format(port=provider_port, folder=tmp_path, collect_for="1h")
    async with BatchProvider(provider_port) as provider:
        async with start_gateway(policy, environ=ENVIRON) as gateway:
            async with client_of(gateway) as client, client_of(gateway, "BLUE_KEY") as blue:
                batch, of_blue = await make(client, [line("a")]), await make(blue, [line("b")])
                await wait(client, batch, "in_progress")
                await wait(blue, of_blue, "in_progress")
                changed = policy.replace("name: batched", "name: moved").replace("mode: provider", "mode: calls")
                assert await gateway.reload(changed.replace("name: blue, key", "name: blue-2, key"))
                done, refused = await wait(client, batch), await wait(blue, of_blue)

                assert provider.batches == []
                assert list(await results(client, done.output_file_id)) == ["a"]
                assert [body["model"] for body in provider.live] == ["real/cheap"]
                errors = await results(blue, refused.error_file_id)
                assert errors["b"]["response"]["status_code"] == 401


async def test_batch_of_embeddings_is_answered(red: AsyncOpenAI, provider: BatchProvider) -> None:
    """Other endpoints than chat, each line by the rules of a live call."""
    bodies = [{"model": "scripted", "input": "some text"}, {"model": "scripted"}]
    lines = [
        {"custom_id": f"e-{number}", "method": "POST", "url": "/v1/embeddings", "body": body}
        for number, body in enumerate(bodies)
    ]
    done = await wait(red, await make(red, lines, endpoint="/v1/embeddings"))

    found = await results(red, done.output_file_id)
    assert len(found["e-0"]["response"]["body"]["data"]) == 1
    errors = await results(red, done.error_file_id)
    assert errors["e-1"]["response"]["body"]["error"]["param"] == "input"


async def test_batch_call_that_fails_upstream_is_tried_five_times(red: AsyncOpenAI, provider: BatchProvider) -> None:
    """What somebody may have worked on is not asked for ever; what comes back in time is answered."""
    broken = {"error": {"message": "a bug", "type": "server_error"}}
    provider.refusals["POST /chat"] = [JSONResponse(broken, 500, {"retry-after-ms": "10"}) for _ in range(5)]
    done = await wait(red, await make(red, [line("a", model="live")]))

    errors = await results(red, done.error_file_id)
    assert errors["a"]["response"]["status_code"] == 500
    assert errors["a"]["response"]["body"] == broken
    assert [path for _, path, _ in provider.requests] == ["/chat/completions"] * 5


async def test_batch_call_that_acts_is_tried_once(red: AsyncOpenAI, provider: BatchProvider) -> None:
    """What somebody may have done is not done again, and what nobody has begun with is."""
    busy = JSONResponse({"error": {"message": "busy"}}, 429, {"retry-after-ms": "10"})
    provider.refusals["POST /chat"] = [busy, JSONResponse({"error": {"message": "a bug"}}, 500)]
    asked = line("a", model="live", mcp_servers=[{"type": "url", "url": "https://mail.example/mcp"}])
    done = await wait(red, await make(red, [asked]))

    errors = await results(red, done.error_file_id)
    assert errors["a"]["response"]["status_code"] == 500
    assert [path for _, path, _ in provider.requests] == ["/chat/completions"] * 2


async def test_batch_call_that_acts_is_not_asked_again_for_an_answer_that_had_no_room(
    provider_port: int, tmp_path: Path
) -> None:
    """It was carried out; only what came of it could not be held."""
    policy = POLICY.format(port=provider_port, folder=tmp_path, collect_for=COLLECT_FOR)
    environ = {**ENVIRON, "SLIPSTREAM_MAX_ANSWERS": "64KiB"}
    async with BatchProvider(provider_port) as provider, start_gateway(policy, environ=environ) as gateway:
        async with client_of(gateway) as client:
            asked = line("a", "x" * 100_000, model="live", mcp_servers=[{"url": "https://mail.example/mcp"}])
            errors = await results(client, (await wait(client, await make(client, [asked]))).error_file_id)

    assert errors["a"]["response"]["body"]["error"]["code"] == "answer_bytes_exhausted"
    assert [path for _, path, _ in provider.requests] == ["/chat/completions"]


async def test_batches_of_a_driver_that_is_killed_are_taken_over(provider_port: int, tmp_path: Path) -> None:
    """Of two processes with one folder one drives, and the other does as soon as that one is gone."""
    policy = POLICY.format(port=provider_port, folder=tmp_path, collect_for=COLLECT_FOR)
    async with BatchProvider(provider_port) as provider, start_gateway(policy, environ=ENVIRON) as first:
        async with client_of(first) as client:
            provider.live_gate.clear()
            batch = await make(client, [line(f"n-{number}", model="live") for number in range(8)])
            async with asyncio.timeout(10):
                while len(provider.live) < 3:
                    await asyncio.sleep(0.02)
        async with start_gateway(policy, environ=ENVIRON) as second, client_of(second) as client:
            await wait(client, await make(client, [line("a", model="scripted")]))
            num_asked = len(provider.live)
            first.process.kill()
            await first.wait_exit()
            async with asyncio.timeout(10):
                while len(provider.live) < num_asked + 3:
                    await asyncio.sleep(0.02)
            provider.live_gate.set()
            done = await wait(client, batch)

            assert num_asked == 3
            assert len(await results(client, done.output_file_id)) == 8
            assert len(provider.live) == 3 + 8


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/files/%00", 404),
        ("GET", "/v1/files/..%2f..%2fbatches.sqlite3/content", 404),
        ("GET", "/v1/files/..%2fbatches.sqlite3", 404),
        ("GET", "/v1/batches/%ff%fe", 404),
        ("GET", "/files/none/content/more", 404),
        ("PUT", "/v1/files/file-1", 405),
        ("DELETE", "/v1/batches/batch_1", 405),
        ("GET", "/v1/files?limit=0", 400),
        ("GET", "/v1/files?order=up", 400),
        ("GET", "/v1/batches?limit=many", 400),
        ("GET", "/v1/batches?after=batch_none", 404),
        ("POST", "/v1/files", 400),
        ("POST", "/v1/batches", 400),
        ("POST", "/v1/batches/batch_1/cancel", 404),
    ],
)
async def test_batches_asked_for_what_cannot_be_answer_in_openais_shape(
    gateway: Gateway, provider: BatchProvider, method: str, path: str, status: int
) -> None:
    """Whatever stands in a path or query."""
    request = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ENVIRON['RED_KEY']}\r\n"
    raw = await gateway.raw(f"{request}content-length: 2\r\nconnection: close\r\n\r\n[]".encode())
    head, _, body = raw.partition(b"\r\n\r\n")

    assert int(head.split()[1]) == status
    assert json.loads(body)["error"].keys() == {"message", "type", "param", "code"}
    assert provider.requests == []
