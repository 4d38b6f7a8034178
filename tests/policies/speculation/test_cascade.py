"""The cascade by prompts, without sockets: who is asked, whose facts count, what an encoder away means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from backends.charges.charge import Charge
from backends.charges.usage import Usage
from backends.errors import ConfigurationError, UpstreamCut
from backends.protocol import Call, Reply
from gateway.simulate.virtual_loop import VirtualClock
from policies.cache.semantic.contracts import EncoderBusy, Vector
from policies.speculation.cascade.by_prompt import ByPrompt
from policies.speculation.cascade.calibration import Calibration, calibrate
from policies.speculation.cascade.stage import Cascade
from policies.speculation.draft import prompt_of
from policies.speculation.outcome import DraftOutcome
from policies.speculation.router.learned_router import learn
from tests.support.calls import make_call
from tests.support.policy.admission import in_virtual_time
from tests.support.policy.pool import Played, StoppedClock

HARD = np.ones(8, np.float32) / np.float32(8**0.5)


class KindEncoder:
    """Vectors of two kinds of prompts; what it cannot read, and whose it is, a test says."""

    dimension = 8
    fingerprint = "made"

    def __init__(self, longest: int = 10_000) -> None:
        self.longest = longest
        self.asked: list[str] = []

    async def open(self) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing."""

    async def encode(self, text: str, told: Callable[[Charge], None] | None = None) -> Vector:
        """One of two vectors."""
        self.asked.append(text)
        if len(text) > self.longest:
            raise EncoderBusy("too long")
        return HARD if "prove" in text else -HARD


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    """Of a draft that can add and cannot prove."""
    prompts = [f"{'prove' if row % 2 else 'add'} number {row}" for row in range(200)]
    vectors = np.stack([HARD if row % 2 else -HARD for row in range(200)])
    weak = np.array([0.0 if row % 2 else 1.0 for row in range(200)])
    router = learn(prompts, vectors, (1 - weak).astype(np.float32), np.random.default_rng(0))
    scores = np.where(weak > 0, 0.0, -1.0)
    return calibrate("router", scores, weak, np.ones(200), np.random.default_rng(0), router=router, encoder="made")


def cascade(calibration: Calibration, draft: Played, encoder: KindEncoder | None = None) -> tuple[Cascade, Played]:
    """A cascade that lets the draft answer what it is right about, and its target."""
    target = Played("big")
    acceptance = ByPrompt(draft, calibration, threshold=-0.5, encoder=encoder or KindEncoder(), clock=StoppedClock())
    return Cascade(target, draft, acceptance), target


def asked(text: str) -> Call:
    """A call with time on the stopped clock."""
    return make_call(text, deadline=1100.0)


@pytest.mark.parametrize(
    ("text", "outcome"), [("add 1 and 2", DraftOutcome.ACCEPTED), ("prove it", DraftOutcome.DECLINED)]
)
async def test_cascade_asks_whom_the_prompt_needs(calibration: Calibration, text: str, outcome: DraftOutcome) -> None:
    """One of the two is asked, and the answer says which."""
    stage, target = cascade(calibration, draft := Played("small"))
    reply = await stage.send(call := asked(text))

    is_drafts = outcome is DraftOutcome.ACCEPTED
    assert (len(draft.calls), len(target.calls)) == (int(is_drafts), int(not is_drafts))
    assert call.facts.draft is outcome
    assert reply.header(b"x-slipstream-stage") == outcome.stage


@pytest.mark.parametrize("failure", [500, 400, 429, UpstreamCut("gone")], ids=str)
async def test_cascade_with_a_failing_draft_asks_the_target(calibration: Calibration, failure: Any) -> None:
    """Nothing of it shows but the outcome, and half of the time is left."""
    stage, target = cascade(calibration, draft := Played("small", failure))
    reply = await stage.send(call := asked("add 1 and 2"))

    assert (reply.status, reply.body) == (200, b"big")
    assert call.facts.draft is DraftOutcome.FAILED
    assert draft.calls[0].deadline == 1050.0
    assert target.calls[0].deadline == 1100.0


async def test_cascade_takes_over_the_facts_of_the_draft(calibration: Calibration) -> None:
    """What the draft used is what the call used; charges of both are the call's."""

    async def answer(call: Call) -> Reply:
        call.facts.backend = "small"
        call.facts.usage = Usage(3, 4)
        call.facts.attempts += 1
        call.facts.charge("small", "tiny")
        return Reply(200, [(b"x-slipstream-stage", b"forged")], body=b"{}")

    stage, _ = cascade(calibration, Played("small", answer))
    reply = await stage.send(call := asked("add 1 and 2"))

    assert (call.facts.backend, call.facts.usage, call.facts.attempts) == ("small", Usage(3, 4), 1)
    assert call.facts.charges is not None
    assert [charge.backend for charge in call.facts.charges] == ["small"]
    assert reply.headers == [(b"x-slipstream-stage", b"draft")]


async def test_cascade_reads_the_end_of_what_is_too_long_and_leaves_what_cannot_be_read(
    calibration: Calibration,
) -> None:
    """Shorter ends are tried; where none can be encoded the target answers."""
    stage, target = cascade(calibration, draft := Played("small"), encoder := KindEncoder(longest=512))
    await stage.send(asked("x" * 5000 + "add"))
    assert [len(text) for text in encoder.asked] == [1024, 512]
    assert len(draft.calls) == 1

    encoder.longest = 0
    await stage.send(call := asked("add"))
    assert call.facts.draft is DraftOutcome.DECLINED
    assert len(target.calls) == 1


def test_cascade_whose_encoder_hangs_asks_the_target(calibration: Calibration) -> None:
    """Soon: the caller waits for an answer, not for what would be the cheapest one."""

    class Hanging(KindEncoder):
        async def encode(self, text: str, told: Callable[[Charge], None] | None = None) -> Vector:
            await asyncio.Event().wait()
            raise AssertionError

    async def main(clock: VirtualClock) -> None:
        stage, target = cascade(calibration, draft := Played("small"), Hanging())
        began_at = clock.now()
        reply = await stage.send(call := asked("add 1 and 2"))

        assert (reply.body, call.facts.draft) == (b"big", DraftOutcome.DECLINED)
        assert (len(target.calls), len(draft.calls)) == (1, 0)
        assert clock.now() - began_at < 5.0

    in_virtual_time(main)


async def test_cascade_whose_encoder_is_another_is_refused(calibration: Calibration) -> None:
    """Vectors of another model mean nothing to the router."""
    stage, _ = cascade(msgspec.structs.replace(calibration, encoder="other"), Played("small"))

    with pytest.raises(ConfigurationError, match="made with another encoder"):
        await stage._acceptance.open()


async def test_cascade_that_is_cancelled_leaves_the_draft(calibration: Calibration) -> None:
    """A client that goes while the draft is asked takes it along, and the target is not asked."""
    is_asked, is_left = asyncio.Event(), asyncio.Event()

    async def silent(call: Call) -> Reply:
        is_asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_left.set()
        raise AssertionError

    stage, target = cascade(calibration, Played("small", silent))
    task = asyncio.create_task(stage.send(asked("add")))
    await is_asked.wait()
    task.cancel()
    await asyncio.wait([task])

    assert is_left.is_set()
    assert target.calls == []


@pytest.mark.parametrize(
    ("extra", "prompt"),
    [
        ({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}, "u"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
            "a\nb",
        ),
        ({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": None}]}, None),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}]}, None),
        ({"messages": [7]}, None),
        ({"messages": []}, None),
        ({"messages": "u"}, None),
        ({"messages": [{"role": "system", "content": "s"}]}, None),
        ({"n": 2}, None),
        ({"n": 1}, "hello"),
        ({"tools": []}, "hello"),
        ({"tools": [{}]}, None),
        ({"mcp_servers": [{"url": "https://mail.example/mcp"}]}, None),
        ({"web_search_options": {}}, None),
        ({"store": True}, None),
        ({"store": False}, "hello"),
    ],
)
def test_prompt_of_a_call_is_its_text_or_nothing(extra: dict[str, Any], prompt: str | None) -> None:
    """Only what one text answers has a prompt; odd bodies have none."""
    assert prompt_of(make_call(extra=extra)) == prompt
