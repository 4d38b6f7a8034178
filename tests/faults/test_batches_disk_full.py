"""Batches whose disk is full: nothing is asked whose answer could not be kept, nothing that was paid for is lost."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from openai import AsyncOpenAI, InternalServerError
from openai.types import Batch

from backends.errors import StoreUnavailable
from gateway.disk.disk_space import DiskSpace
from tests.support.clock import FakeClock
from tests.support.gateway import Gateway, reserved_port, start_gateway
from tests.support.servers.batch_provider import BatchProvider
from tests.support.small_disk import fill, small_disk

NUM_LINES = 40
POLICY = """
version: 1
backends:
  up: {{type: openai, base_url: "http://127.0.0.1:{port}/v1"}}
stores:
  batches: {{folder: "{folder}"}}
defaults:
  retry: {{attempts: 0}}
routes:
  - name: live
    match: {{models: ["live"]}}
    backends: [{{ref: up}}]
    batch: {{at_once: 3}}
"""


@asynccontextmanager
async def begun_batch(folder: Path) -> AsyncIterator[tuple[Gateway, BatchProvider, AsyncOpenAI, Batch]]:
    """A batch of forty lines of which three are being answered, until the provider's gate is opened."""
    with reserved_port() as port:
        policy = POLICY.format(port=port, folder=folder)
        async with BatchProvider(port) as provider, start_gateway(policy) as gateway:
            provider.live_gate.clear()
            async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
                content = "\n".join(map(line, range(NUM_LINES)))
                file = await client.files.create(file=("input.jsonl", content.encode()), purpose="batch")
                batch = await client.batches.create(
                    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
                )
                await until(lambda: len(provider.live) == 3)
                yield gateway, provider, client, batch


def line(number: int) -> str:
    """A line of a batch's input."""
    body = {"model": "live", "messages": [{"role": "user", "content": f"hello {number}"}]}
    return json.dumps({"custom_id": f"n-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})


async def until(is_so: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for it. Raises: TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not is_so():
            await asyncio.sleep(0.02)


async def answers_of(client: AsyncOpenAI, batch: Batch) -> int:
    """How many lines of the batch have an answer, once it is completed. Raises: TimeoutError."""
    async with asyncio.timeout(20):
        while (found := await client.batches.retrieve(batch.id)).status != "completed":
            await asyncio.sleep(0.05)
    assert found.output_file_id is not None
    return len((await client.files.content(found.output_file_id)).text.splitlines())


async def test_batch_asks_nothing_whose_answer_the_full_disk_could_not_keep(tmp_path: Path) -> None:
    """The answers in flight go where room was held for them, the other lines wait; each line is asked once."""
    with small_disk(tmp_path):
        async with begun_batch(tmp_path) as (gateway, provider, client, batch):
            filler = tmp_path / "filler"
            fill(filler)
            provider.live_gate.set()
            await gateway.wait_stderr("the disk of batches has no room for answers")
            found = await client.batches.retrieve(batch.id)
            num_asked = len(provider.live)
            filler.unlink()

            assert found.request_counts is not None
            assert found.request_counts.completed == num_asked
            assert num_asked < NUM_LINES
            assert await answers_of(client, batch) == NUM_LINES
            assert len(provider.live) == NUM_LINES


async def test_batch_holds_answers_that_cannot_be_written_at_all(tmp_path: Path) -> None:
    """Where no file may grow, not even into the room, the answers in flight are held and nothing else is asked."""
    async with begun_batch(tmp_path) as (gateway, provider, client, batch):
        before = resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        provider.live_gate.set()
        async with asyncio.timeout(20):
            while not (await gateway.metrics()).value("slipstream_batches_disk_full"):
                await asyncio.sleep(0.1)
        num_asked = len(provider.live)
        resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, before)

        assert num_asked == 3
        assert await answers_of(client, batch) == NUM_LINES
        assert len(provider.live) == NUM_LINES


async def test_room_lets_what_waits_go_first(tmp_path: Path) -> None:
    """While an answer waits for the disk, the room is not laid anew, so that the answer has it."""
    clock = FakeClock()
    room = DiskSpace(tmp_path, clock)
    is_full = True
    written: list[bool] = []

    async def write() -> None:
        if is_full:
            raise StoreUnavailable("full")
        written.append((tmp_path / "room").exists())

    had_room = await room.ensure()
    keeping = asyncio.create_task(room.keep(write))
    await until(lambda: not room.has_room)
    has_room = await room.ensure()
    is_full = False
    while not keeping.done():
        await clock.advance(1.0)
    await keeping

    assert had_room
    assert not has_room
    assert written == [False]
    assert await room.ensure()


async def test_gateway_starts_with_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Calls are answered, batches are told that they must wait, and work as soon as the disk does."""
    with small_disk(tmp_path), reserved_port() as port:
        policy = POLICY.format(port=port, folder=tmp_path)
        async with start_gateway(policy):
            pass
        fill(tmp_path / "filler")
        async with BatchProvider(port), start_gateway(policy) as gateway:
            async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
                live = await client.chat.completions.create(
                    model="live", messages=[{"role": "user", "content": "hello"}]
                )
                with pytest.raises(InternalServerError) as refused:
                    await client.files.create(file=("input.jsonl", line(1).encode()), purpose="batch")
                (tmp_path / "filler").unlink()
                file = await client.files.create(file=("input.jsonl", line(1).encode()), purpose="batch")

                assert live.choices
                assert refused.value.status_code == 503
                assert str(tmp_path) not in refused.value.message
                assert file.bytes == len(line(1))
