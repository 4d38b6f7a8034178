"""Brings all metrics up to date when somebody looks, and takes away what a new policy does not have any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.core import Core
from gateway.metrics.process import ProcessMetrics
from gateway.process.slices import Slices

if TYPE_CHECKING:
    from gateway.runtime import Runtime
    from policies.failures import Failures


async def refresh_metrics(core: Core, *, failures: Failures, others: Sequence[Failures] = ()) -> None:
    """Count what requests have done, and have every group copy what it shows, a slice at a time.

    What fails is left as it was, and is one of the `failures`; `others` are counted with them.
    """
    slices = Slices(core.clock)
    for step in core.observer.flushes():
        step()
        await slices.give_way()
    is_over = False
    while not is_over:
        runtime = core.runtime
        for step in (step for group in core.metrics.groups for step in group.refresh(runtime)):
            try:
                step()
            except Exception as error:  # the border of background work: the others are to be shown
                failures.note(error)
            await slices.give_way()
            if core.runtime is not runtime:
                # Another policy took over meanwhile; what it does not have any more must not come back.
                break
        else:
            is_over = True
    for each in (failures, core.observer.failures, *others, *runtime.failures()):
        if number := each.take():
            core.metrics.of(ProcessMetrics).background_failures.labels(each.work).inc(number)


async def retire_metrics(core: Core, previous: Runtime) -> None:
    """Take away the series of what the policy in force does not have any more, a slice at a time.

    What its parts have counted since the last look is added first, for it would be lost with them.
    """
    slices = Slices(core.clock)
    for step in (step for group in core.metrics.groups for step in group.retire(previous, core.runtime)):
        step()
        await slices.give_way()
