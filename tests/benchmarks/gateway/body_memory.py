"""What large bodies cost in memory: many at once through a gateway, and the most that its process ever held.

    python -m tests.benchmarks.gateway.body_memory --count 10 --mib 60

Every body is answered or refused with 413, 429 or 503 in OpenAI's shape, and the growth stays within three times what
`SLIPSTREAM_MAX_BODIES` lets in.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from pathlib import Path

from tests.support.faults import CHAT, CaseServer, at_most, none, parser, policy, report
from tests.support.gateway import Gateway, start_gateway
from tests.support.http_client import Answer, HttpClient, chat_body
from tests.support.servers.openai_server import Behaviour

_MIB = 1024**2


def _peak_mib(gateway: Gateway) -> float:
    status = Path(f"/proc/{gateway.process.pid}/status").read_text(encoding="ascii")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


async def _post(gateway: Gateway, body: bytes) -> Answer:
    client = await HttpClient.open(gateway.port)
    try:
        return await client.post(CHAT, body, timeout_s=120)
    finally:
        client.close()


async def measure(count: int, num_mib: int, max_bodies_mib: int) -> tuple[Counter[int], float]:
    """How `count` bodies sent at once were answered, and by how many MiB the gateway grew at most."""
    body = chat_body("x" * (num_mib * _MIB))
    async with CaseServer() as upstream:
        upstream.default = Behaviour(body=b'{"choices":[]}')
        environ = {"SLIPSTREAM_MAX_BODIES": f"{max_bodies_mib}MiB"}
        async with start_gateway(policy(upstream.base_url), environ=environ) as gateway:
            await _post(gateway, chat_body())
            before_mib = _peak_mib(gateway)
            answers = await asyncio.gather(*(_post(gateway, body) for _ in range(count)))
            shapeless = [answer for answer in answers if answer.status >= 400 and answer.error() is None]
            assert not shapeless, shapeless
            return Counter(answer.status for answer in answers), _peak_mib(gateway) - before_mib


def main() -> int:
    """Measure and print."""
    options = parser(__doc__, count=10, what="bodies at once")
    options.add_argument("--mib", type=int, default=60, help="the size of each (default 60)")
    options.add_argument("--max-bodies", type=int, default=512, help="SLIPSTREAM_MAX_BODIES, in MiB (default 512)")
    given = options.parse_args()
    statuses, grown_mib = asyncio.run(measure(given.count, given.mib, given.max_bodies))
    print(f"answers: {dict(statuses)}; grown by {grown_mib:.0f} MiB at most")
    let_in_mib = min(given.max_bodies, given.count * given.mib)
    others = sum(number for status, number in statuses.items() if status not in (200, 413, 429, 503))
    return report([none("other answers", others), at_most("grown", 3 * let_in_mib, grown_mib, "MiB")])


if __name__ == "__main__":
    sys.exit(main())
