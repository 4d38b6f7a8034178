"""What a hundred thousand stored keys cost: memory, and the look-up of a caller beside one key.

    python -m tests.benchmarks.gateway.keys [--with-terms]

Look-ups of few and of many keys take turns, for times of two runs say little.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from backends.clock import SystemClock
from gateway.http.auth import Keyring, Principal
from gateway.keys.key_store import KEYS, Changes, KeyStore, Mark
from gateway.keys.known_keys import KnownKeys, RowReader
from gateway.keys.stored_key import new_key, to_row
from gateway.sql.sqlite import SqliteDatabase
from policies.keys.settings import KeyTerms
from policies.limits.settings import BudgetTerms, LimitTerms

_ROUNDS = 40
_LOOKS = 5000


class _Known:
    """Keys of which nobody is asked for those that are not known."""

    def __init__(self, known: KnownKeys) -> None:
        self.find, self.named = known.find, known.named

    async def look_for(self, secret: bytes, digest: bytes) -> Principal | None:
        return None


def main() -> None:
    """Print memory and times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000, help="how many there are")
    parser.add_argument("--with-terms", action="store_true", help="each has a limit, a budget, tags and a team")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        few, few_secrets = _keyring_of(Path(folder) / "few.sqlite3", 1, with_terms=options.with_terms)
        gc.collect()
        before = _rss_bytes()
        many, many_secrets = _keyring_of(Path(folder) / "many.sqlite3", options.keys, with_terms=options.with_terms)
        gc.collect()
        after = _rss_bytes()
    random = Random(0)
    times: dict[str, list[float]] = {"few": [], "many": [], "unknown": []}
    for _ in range(_ROUNDS):
        asked = {
            "few": (few, few_secrets * _LOOKS),
            "many": (many, random.choices(many_secrets, k=_LOOKS)),
            "unknown": (many, [b"sk-slip-%064x" % random.getrandbits(200) for _ in range(_LOOKS)]),
        }
        for name, (keyring, secrets) in asked.items():
            times[name].append(_seconds(keyring, secrets) / _LOOKS)
    median = {name: statistics.median(each) * 1e6 for name, each in times.items()}
    own = len(many_secrets) * 105 / 2**20
    print(f"{options.keys} keys: RSS {after / 2**20:.1f} MiB, {(after - before) / 2**20:.1f} MiB of it by the keys")
    print(f"  (the benchmark's own list of secrets, about {own:.1f} MiB, among them)")
    print(
        f"look-up: {median['few']:.2f} us with 1 key, {median['many']:.2f} us with all, difference "
        f"{median['many'] - median['few']:.2f} us; {median['unknown']:.2f} us for one that is not known"
    )


def _keyring_of(path: Path, count: int, *, with_terms: bool) -> tuple[Keyring, list[bytes]]:
    """As a gateway has them: read from the store."""
    clock = SystemClock()
    store = KeyStore(SqliteDatabase(path, KEYS), clock)
    store.open()
    secrets = []
    rows = []
    for number in range(count):
        terms = KeyTerms(tenant=f"tenant-{number % 1000}")
        if with_terms:
            terms = KeyTerms(
                tenant=f"tenant-{number % 1000}",
                team=f"team-{number % 50}",
                tags=(f"project:{number % 200}",),
                limit=LimitTerms(rpm=60),
                budget=BudgetTerms(usd=50),
            )
        key, secret = new_key(f"key-{number}", terms, clock.wall())
        secrets.append(secret.encode())
        rows.append((*to_row(key), number + 1))
        if len(rows) == 1000 or number == count - 1:
            store.follow(Changes(Mark(store.mark().identity, number + 1), rows, are_all=False))
            rows = []
    known = KnownKeys()
    for key in RowReader().read(store.changes(None).rows):
        known.take(key)
    store.close()
    return Keyring([], clock, _Known(known)), secrets


def _seconds(keyring: Keyring, secrets: list[bytes]) -> float:
    """CPU that it takes to find, or not to find, all of these."""
    recognise = keyring.recognise
    began = time.process_time()
    for secret in secrets:
        recognise(secret)
    return time.process_time() - began


def _rss_bytes() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
