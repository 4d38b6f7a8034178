"""Starts the process that looks at policies, one at a time, and bounds what it may use; who leaves ends it."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from gateway.dashboard.policy.job import PolicyJob

READ_S = 20.0
TRY_S = 90.0
"""How long it may take to read policies, and to try them."""
_LINE_BYTES = 16 * 1024 * 1024
BUSY = {"problem": "Somebody is trying a policy just now; try again in a moment."}
# The child finds the same modules as its parent, wherever that was started.
_START = "import sys; sys.path[:] = {path!r}; from gateway.dashboard.policy.child import main; main()"


class Workshop:
    """Of one gateway."""

    def __init__(self) -> None:
        self._busy = asyncio.Lock()

    async def messages(self, job: PolicyJob, within_s: float) -> AsyncGenerator[bytes]:
        """What the process says, line by line; the last line has the `problem`, if there was one."""
        if self._busy.locked():
            yield _line(**BUSY)
            return
        async with self._busy:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-c", _START.format(path=sys.path)),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                limit=_LINE_BYTES,
                env={},
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(within_s), aclosing(_said(process, msgspec.json.encode(job))) as lines:
                    async for line in lines:
                        yield line
            except TimeoutError:
                yield _line(problem=f"It takes more than {within_s:.0f} seconds, and was ended.")
            finally:
                if process.returncode is None:
                    process.kill()
                # Without it the process would stay as a zombie; it is dead, so this is a moment.
                await asyncio.shield(process.wait())

    async def whole(self, job: PolicyJob, within_s: float) -> dict[str, object]:
        """All that it says, as one message; with a `problem` where it came to no end."""
        said: dict[str, object] = {}
        async with aclosing(self.messages(job, within_s)) as lines:
            async for line in lines:
                said |= msgspec.json.decode(line)
        return said


async def _said(process: Process, job: bytes) -> AsyncGenerator[bytes]:
    assert process.stdin is not None, "started with pipes"
    assert process.stdout is not None, "started with pipes"
    process.stdin.write(job)
    process.stdin.close()
    async for line in process.stdout:
        yield line
    if await process.wait() != 0:
        yield _line(problem="It was ended: it used too much memory or time.")


def _line(**message: object) -> bytes:
    return msgspec.json.encode(message) + b"\n"
