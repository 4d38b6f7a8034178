"""What a check is. The 36 faults and the scenarios of failover are values of this one kind, a small function each.

To add some: write `async def name(bench: Bench) -> Outcome` in a module about one concept, list it there as
`CHECKS = (Check("F1", "what is wrong and what must happen", name), ...)`, and name the module in `catalogue.py`.
A check that wants its own policy and upstreams, and nothing of the user's, asks the bench for them:

    async def upstream_answers_429(bench: Bench) -> Outcome:
        async with bench.upstreams(2) as (first, second):
            async with bench.gateway(two_routes(first.url, second.url)) as child:
                first.usual = Lie(status=429)
                answer = await child.ask(CHAT, chat("hello", "selftest", stream=True))
            if answer.is_good and second.num_asked == 1:
                return passed("1 of 1 answered by the second")
            return failed(f"status {answer.status}", "what happened instead", "what an operator can do")
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.selftest.bench import Bench, GatewayTarget
from gateway.selftest.verdict import CheckOutcome


@dataclass(frozen=True, slots=True)
class Check:
    """One fault. `id` is what `--only` takes; a number is that of the list in docs/selftest.md."""

    id: str
    fault: str
    """What is wrong and what must happen, in at most 48 characters."""
    run: Callable[[Bench], Awaitable[CheckOutcome]]
    outside: Callable[[GatewayTarget], Awaitable[CheckOutcome]] | None = None
    """The same for a running gateway, where nothing but requests is needed."""
    is_timed: bool = False
    """Whether its verdict rests on how long things take: nothing else is tried beside it then."""
