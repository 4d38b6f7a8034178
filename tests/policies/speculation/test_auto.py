"""`mode: auto`: which way a call takes, what that rests on, and what becomes of ways that lie, fail or are new."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from backends.charges.usage import Usage
from backends.clock import Clock
from backends.errors import ConnectFailed, SlipstreamError, TotalTimeout, UpstreamCut, UpstreamError
from backends.operations import Operation
from backends.protocol import Call, Capabilities, Reply, Slo, Statistics, Timeouts
from backends.sse import encode_event
from backends.stream import Stream
from gateway.simulate.virtual_loop import VirtualClock
from policies.pool.fallback import FallbackTarget
from policies.prices.price import Price, Tariff, named_price, per_token
from policies.speculation.auto.action import Action
from policies.speculation.auto.choice import LatenessPrice, QualityPurse, choose
from policies.speculation.auto.forecast import Forecast, TimeSpread
from policies.speculation.auto.settings import AutoPolicy
from policies.speculation.auto.stage import Auto
from tests.support.calls import make_call
from tests.support.policy.admission import in_virtual_time
from tests.support.policy.pool import Pieces

SLO = Slo(1.0, 0.0, 0.1)
DEARER = 10
POLICY = AutoPolicy(
    mode="auto",
    allow=("draft", "elsewhere"),
    draft="small",
    calibration="pair.cascade",
    elsewhere=("cloud",),
    quality=0.9,
    model=None,
    share=0.95,
    late_usd_per_s=0.0,
)


class Timed:
    """A backend whose first token comes after the seconds that a test sets, or that fails."""

    def __init__(self, name: str, clock: Clock, after_s: float = 0.1) -> None:
        self.name = name
        self.capabilities = Capabilities(operations=frozenset({Operation.CHAT}))
        self.after_s = after_s
        self.failure: SlipstreamError | None = None
        self.status = 200
        self.asked = 0
        self._clock = clock

    async def open(self) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing."""

    def statistics(self) -> Statistics:
        """Calls taken."""
        return Statistics(sent=self.asked)

    async def send(self, call: Call) -> Reply:
        """Ten tokens at once, or the failure."""
        self.asked += 1
        await self._clock.sleep(self.after_s)
        if self.failure is not None:
            raise self.failure
        call.facts.backend = self.name
        call.facts.first_token_at = self._clock.now()
        call.facts.usage = Usage(10, 10)
        forged = (b"x-slipstream-action", b"forged")
        if not call.stream:
            return Reply(self.status, [forged], body=b"{}")
        return Reply(200, [forged], stream=Stream(Pieces(), first=encode_event(b'{"choices":[]}')))


class Losing:
    """A judge that says of every call what a test sets."""

    loss_of_draft: float | None = 0.0

    async def open(self) -> None:
        """Nothing."""

    async def loss(self, call: Call) -> float | None:
        """What is lost where the draft answers."""
        return self.loss_of_draft


def price_of(usd: int) -> Price:
    """So many pico-dollars for each token."""
    return named_price("backend", Tariff(per_token(usd, usd)))


class Choosing:
    """A stage with three ways: the target at 10, the draft at 1, another route at 100; two of them a test may leave."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.target, self.draft, self.cloud = (Timed(name, clock) for name in ("big", "small", "cloud"))
        self.judge = Losing()
        self.prices: dict[str, Price | None] = {"target": price_of(10), "draft": price_of(1), "cloud": price_of(100)}
        own, draft, cloud = (
            Action(name, backend, lambda _, name=name: (self.prices[name],), clock)  # type: ignore[misc]  # a default
            for name, backend in (("target", self.target), ("draft", self.draft), ("cloud", self.cloud))
        )
        route = FallbackTarget("cloud", self.cloud, Timeouts())
        self.stage = Auto(self.target, POLICY, own, clock, draft=draft, judge=self.judge, elsewhere=[(cloud, route)])

    async def ask(self, *, slo: Slo = SLO, **extra: Any) -> tuple[Call, str]:
        """One call, read to its end, and the way that it took."""
        call = make_call(stream=True, deadline=1e9, slo=slo, extra=extra)
        reply = await self.stage.send(call)
        assert reply.stream is not None
        while await reply.stream.read():
            pass
        await reply.aclose()
        ways = [value for name, value in reply.headers if name == b"x-slipstream-action"]
        assert len(ways) == 1
        return call, ways[0].decode()

    async def ways(self, number: int) -> list[str]:
        """Of so many calls one after the other."""
        return [(await self.ask())[1] for _ in range(number)]


def choosing(run: Callable[[Choosing], Awaitable[None]]) -> None:
    """Run it in virtual time."""

    async def main(clock: VirtualClock) -> None:
        await run(Choosing(clock))

    in_virtual_time(main)


def test_the_cheapest_way_is_taken_once_enough_was_seen_of_it() -> None:
    """Cheaper ways of which too little was seen are tried by turns with the target; dearer ones not while it is in
    time, but as soon as it is late.
    """

    async def run(many: Choosing) -> None:
        first = await many.ways(30)
        last = await many.ways(100)

        assert first.count("target") == first.count("draft") == 15
        assert last[:20].count("draft") >= 10
        assert last[20:].count("draft") == 80
        assert not many.cloud.asked
        many.target.after_s = many.draft.after_s = 10 * SLO.first_token_s
        assert (await many.ways(100)).count("cloud") >= 50

    choosing(run)


def test_a_draft_answers_no_more_than_the_quality_allows() -> None:
    """A tenth may be lost: of calls that lose all of it the draft gets no more than every tenth, at any moment."""

    async def run(many: Choosing) -> None:
        many.judge.loss_of_draft = 1.0
        ways: list[str] = []
        for _ in range(600):
            ways += await many.ways(1)
            assert ways.count("draft") <= 0.1 * len(ways) + 1e-6

        assert ways.count("draft") > 20

    choosing(run)


class Told(LatenessPrice):
    """Keeps what it is told of."""

    def __init__(self) -> None:
        super().__init__(0.95)
        self.told: list[bool] = []

    def ended(self, *, was_in_time: bool) -> None:
        """A call is over."""
        self.told.append(was_in_time)


@pytest.mark.parametrize(
    ("after_s", "status", "told"),
    [(0.1, 200, [True]), (1.8, 200, [True]), (3.0, 200, [False]), (0.1, 400, []), (0.1, 429, [False])],
)
def test_whole_answers_are_looked_at_and_mistakes_of_callers_are_nobodys_lateness(
    after_s: float, status: int, told: list[bool]
) -> None:
    """In time is what ends when a stream in time could have: 1 s and nine gaps of 0.1 s."""

    async def run(many: Choosing) -> None:
        many.target.after_s, many.target.status = after_s, status
        many.stage.late = late = Told()

        await (await many.stage.send(make_call(deadline=1e9, slo=SLO))).aclose()

        assert late.told == told

    choosing(run)


def test_a_call_that_nobody_can_judge_is_never_the_drafts() -> None:
    """However cheap that would be."""

    async def run(many: Choosing) -> None:
        many.judge.loss_of_draft = None
        await many.ways(200)

        assert many.draft.asked == 0

    choosing(run)


def test_a_target_that_was_fast_and_lies_is_left_for_one_in_time() -> None:
    """A hundred fast answers, then each takes five seconds: the dear route takes over, and gives back afterwards."""

    async def run(many: Choosing) -> None:
        many.judge.loss_of_draft = None
        await many.ways(400)
        many.target.after_s = 5.0
        await many.ways(60)
        slow = await many.ways(100)
        many.target.after_s = 0.1
        await many.ways(3000)
        again = await many.ways(100)

        assert slow.count("cloud") > 90
        assert again.count("target") == 100

    choosing(run)


def test_limits_of_one_call_count_for_that_call() -> None:
    """Hurried calls go where they are in time, once as many were late as may be; the others stay where it is cheap."""

    async def run(many: Choosing) -> None:
        many.judge.loss_of_draft = None
        many.target.after_s, many.cloud.after_s = 0.8, 0.1
        await many.ways(600)
        ways, hurried = [], []
        for _ in range(300):
            ways.append((await many.ask())[1])
            hurried.append((await many.ask(slo=Slo(0.3, 0.0, 0.1)))[1])

        assert ways[50:].count("target") > 245
        assert hurried[50:].count("cloud") > 215

    choosing(run)


@pytest.mark.parametrize("error", [None, UpstreamCut("gone")], ids=["error event", "cut"])
def test_a_way_that_says_nothing_but_its_role_never_shows(error: UpstreamError | None) -> None:
    """It has answered with a good head, and then fails: the target answers, and the way rests."""
    said = b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}'
    failure = (encode_event(b'{"error":{"message":"out of memory"}}'),) if error is None else ()

    async def run(many: Choosing) -> None:
        asked: list[Call] = []

        async def fail(call: Call) -> Reply:
            asked.append(call)
            stream = Stream(Pieces(encode_event(said), *failure, error=error))
            return Reply(200, [(b"content-type", b"text/event-stream")], stream=stream)

        many.judge.loss_of_draft = None
        many.prices["cloud"] = price_of(1)
        many.cloud.send = fail  # type: ignore[method-assign]  # this one's failure is the case
        ways = await many.ways(50)

        assert set(ways) == {"target"}
        assert 1 <= len(asked) <= 5

    choosing(run)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_way_has_half_of_the_time_and_a_stream_that_has_begun_all_of_it(stream: bool) -> None:
    """Where it has not begun by then the target has the other half; a stream is nobody else's once it has."""

    async def run(many: Choosing) -> None:
        deadlines: list[float] = []

        async def hang(call: Call) -> Reply:
            deadlines.append(call.deadline)
            await many.clock.sleep(min(1e6, call.deadline - many.clock.now()))
            raise TotalTimeout("late")

        many.judge.loss_of_draft = None
        many.prices["cloud"] = price_of(1)
        many.cloud.send = hang  # type: ignore[method-assign]  # this one's silence is the case
        while not deadlines:
            began_at = many.clock.now()
            reply = await many.stage.send(make_call(stream=stream, deadline=began_at + 100, slo=SLO))
            await reply.aclose()

        assert reply.status == 200
        assert many.clock.now() - began_at == pytest.approx(50, abs=1)
        assert deadlines == [began_at + (100 if stream else 50)]

    choosing(run)


def test_a_client_that_leaves_while_the_draft_is_asked_takes_no_quality_along() -> None:
    """Else who always leaves would have everybody answered by the dear target."""

    async def run(many: Choosing) -> None:
        many.judge.loss_of_draft = 0.3
        await many.ways(400)
        many.draft.after_s = 1e3
        num_left = 0
        while num_left < 20:
            asked, left = many.draft.asked, many.stage.purse.left
            task = asyncio.create_task(many.ask())
            await many.clock.sleep(0.2)
            task.cancel()
            await asyncio.wait([task])
            num_left += many.draft.asked - asked
            assert many.draft.asked == asked or many.stage.purse.left >= left

    choosing(run)


def test_a_call_that_acts_is_the_targets() -> None:
    """However cheap another way is: where that failed it would be done twice."""

    async def run(many: Choosing) -> None:
        await many.ways(200)
        others = many.draft.asked + many.cloud.asked
        ways = {(await many.ask(mcp_servers=[{"url": "https://mail.example/mcp"}]))[1] for _ in range(20)}

        assert (ways, many.draft.asked + many.cloud.asked) == ({"target"}, others)

    choosing(run)


def test_a_way_that_fails_never_shows_and_rests() -> None:
    """The target answers instead, once, and the quality that was set aside is there again; the way is tried later."""

    async def run(many: Choosing) -> None:
        await many.ways(400)
        many.draft.failure = ConnectFailed("gone")
        many.draft.asked = 0
        left = many.stage.purse.left
        ways = await many.ways(50)

        assert ways.count("target") == 50
        assert many.draft.asked <= 5
        assert many.stage.purse.left >= left
        many.draft.failure = None
        await many.clock.sleep(120)
        assert (await many.ways(20)).count("draft") >= 18

    choosing(run)


@pytest.mark.parametrize("usd", [0, None])
def test_a_free_way_is_taken_and_one_without_a_price_is_not(usd: int | None) -> None:
    """0 is a price; who says none is not guessed to be cheap."""

    async def run(many: Choosing) -> None:
        many.judge.loss_of_draft = None
        many.prices["cloud"] = price_of(usd) if usd is not None else None
        await many.ways(500)

        assert (await many.ways(50)).count("cloud") == (50 if usd == 0 else 0)

    choosing(run)


def test_nobody_in_time_takes_the_likeliest_of_those_that_are_good_enough() -> None:
    """At a high price of lateness; the draft that is likelier yet may not answer."""
    purse, late = QualityPurse(0.1), LatenessPrice(0.95)
    late.asked(100.0)
    forecasts = [
        Forecast("target", 100.0, 0.01),
        Forecast("draft", 1.0, 0.9, loss=0.5),
        Forecast("cloud", 1000.0, 0.6),
    ]

    assert choose(forecasts, purse, late, late_s_price=0.0, last="target").name == "cloud"


def test_two_ways_that_cost_nearly_the_same_do_not_take_turns() -> None:
    """Within a tenth what was taken last stays."""
    purse, late = QualityPurse(0.1), LatenessPrice(0.95)
    forecasts = [Forecast("target", 100.0, 1.0), Forecast("cloud", 95.0, 1.0)]

    assert choose(forecasts, purse, late, late_s_price=0.0, last="target").name == "target"
    assert choose(forecasts, purse, late, late_s_price=0.0, last="").name == "cloud"


def test_the_share_in_time_is_that_of_times_around_the_prediction() -> None:
    """Against twenty thousand drawn ones: the share within a limit, and the seconds beyond it."""
    random, spread = Random(3), TimeSpread()
    times = [2.0 * random.lognormvariate(0.1, 0.3) for _ in range(20_000)]
    for seconds in times:
        spread.observe(2.0, seconds)

    assert spread.share_within(2.0, 2.5) == pytest.approx(sum(each <= 2.5 for each in times) / 20_000, abs=0.08)
    over = sum(max(0.0, each - 2.5) for each in times) / 20_000
    assert spread.expected_over_s(2.0, 2.5) == pytest.approx(over, rel=0.35)
