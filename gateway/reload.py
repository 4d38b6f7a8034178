"""Hot reload: a changed policy file takes over whole, or not at all.

Calls in flight finish on the policy they began with. A file that cannot be used changes nothing but a metric and
a log line that says why. However long a policy is, calls go on while it is read, checked and assembled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from backends.errors import ConfigurationError
from gateway.core import Core
from gateway.metrics.process import ProcessMetrics
from gateway.metrics.refresh import retire_metrics
from gateway.process.slices import Slices
from gateway.revisions import Refusal, Revision, Revisions
from gateway.runtime import Runtime, close_part
from policies.policy_file.sources import PolicyFiles

_logger = logging.getLogger(__name__)
_REST = 50.0
"""Times that looking at the files took, between two looks: 2 % of one processor at most."""
_MAX_MORE_S = 10.0


class Reloader:
    """Watches the files of a policy and swaps `core.runtime`. One reload at a time: what changes or is asked for
    meanwhile is one more, after it.

    `build` reads the files and assembles a runtime next to the one given, raising ConfigurationError.
    """

    def __init__(
        self,
        core: Core,
        files: PolicyFiles,
        build: Callable[[Runtime], Awaitable[Runtime]],
        revisions: Revisions,
    ) -> None:
        self._core = core
        self._files = files
        self._build = build
        self.revisions = revisions
        self._wanted = asyncio.Event()
        self._last_found = files.seen
        self._retired: set[Runtime] = set()
        self._looking_s = 0.0

    def request(self) -> None:
        """Reload now, changed or not (SIGHUP)."""
        self._wanted.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            asked = await self._wait_for_reason()
            # In a thread, for there may be many, and a slow disk below them.
            began = self._core.clock.now()
            found = await asyncio.to_thread(self._files.fingerprint)
            self._looking_s = self._core.clock.now() - began
            # A file that is still being written is left alone until it has been the same twice.
            if asked or (found != self._files.seen and found == self._last_found):
                await self._reload()
            self._last_found = found
            await self._close_idle()

    async def aclose(self) -> None:
        """Close everything, of the runtime in force and of retired ones: stacks, what they share, leaves."""
        runtimes = {*self._retired, self._core.runtime}
        owned = {id(part): part for runtime in runtimes for part in runtime.parts()}
        for part in reversed(owned.values()):
            await close_part(part)

    async def _wait_for_reason(self) -> bool:
        try:
            await asyncio.wait_for(self._wanted.wait(), self._pause_s())
        except TimeoutError:
            return False
        self._wanted.clear()
        return True

    def _pause_s(self) -> float:
        """Until the files are looked at again: where there are so many that looking takes long, later."""
        interval_s = self._core.settings.reload_interval
        return min(max(interval_s, _REST * self._looking_s), interval_s + _MAX_MORE_S)

    async def _reload(self) -> None:
        core = self._core
        metrics = core.metrics.of(ProcessMetrics)
        old = core.runtime
        new = None
        try:
            new = await self._build(old)
            await new.open(old)
        except BaseException as error:
            if new is not None:
                # What it had opened already is closed like that of a policy that was in force.
                self._retired.add(new)
            if not isinstance(error, Exception):
                raise
            metrics.policy_reloads.labels("refused").inc()
            metrics.policy_file_refused.set(1)
            reason = _reason(error)
            self.revisions.refused = Refusal(core.clock.wall(), reason)
            _log_refusal(old, error, reason)
            return
        core.runtime = new
        self.revisions.applied(Revision(new.revision, core.clock.wall(), self._files.texts))
        self._retired.add(old)
        if old.prober is not None:
            # The new one asks all that are still there; calls in flight need nobody to ask for them.
            await close_part(old.prober)
        metrics.policy_reloads.labels("applied").inc()
        metrics.policy_file_refused.set(0)
        show_revision(core)
        await retire_metrics(core, old)
        _logger.info("policy revision %s is in force (was %s)", new.revision, old.revision)

    async def _close_idle(self) -> None:
        idle = [runtime for runtime in self._retired if runtime.in_flight == 0]
        while idle:
            runtime = idle.pop()
            others = {self._core.runtime, *self._retired} - {runtime}
            kept = {id(part) for other in others for part in other.parts()}
            slices = Slices(self._core.clock)
            for part in reversed(runtime.parts()):
                if id(part) not in kept:
                    await close_part(part)
                    await slices.give_way()
            # Only now: what is cut short is done at the end.
            self._retired.discard(runtime)
            # To free a long policy in one step would stop the loop; here its parts are the last to go.
            parts: list[object] = [*runtime.loaded.policy.routes, *runtime.loaded.policy.keys]
            del runtime, others
            while parts:
                parts.pop()
                await slices.give_way()


def show_revision(core: Core) -> None:
    """Say in the metrics which revision is in force."""
    core.metrics.of(ProcessMetrics).policy_info.labels(core.runtime.revision).set(1)


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"


def _log_refusal(kept: Runtime, error: Exception, reason: str) -> None:
    """Say why `kept` stays, with the place in the code where it is none of the reasons that are foreseen."""
    foreseen = isinstance(error, ConfigurationError)
    _logger.error(
        "the changed policy file is not taken over; revision %s stays\n%s",
        kept.revision,
        reason,
        exc_info=None if foreseen else error,
    )
