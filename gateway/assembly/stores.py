"""What the processes of a gateway keep, and where: cached answers, owners of objects, batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from backends.clock import Clock
from gateway.api.owners import Owners
from policies.cache.store import Store
from policies.cache.store_memory import MemoryEntryStore
from policies.schema import StoresPolicy

if TYPE_CHECKING:
    from gateway.batches.service import Batches
    from gateway.core import Core


def build_store(policy: StoresPolicy, clock: Clock) -> Store:
    """Where cached answers live.

    Raises: ConfigurationError if Redis is asked for without the extra.
    """
    if policy.redis is not None:
        from policies.cache.store_redis import build_redis_store

        return build_redis_store(policy.redis, clock)
    return MemoryEntryStore(policy.memory.max_size, clock)


def build_owners(policy: StoresPolicy, clock: Clock, shared_directory: Path | None) -> Owners:
    """Who remembers whose the objects at upstreams are; together with other processes where there is a place for it."""
    if policy.redis is not None:
        from policies.objects.owners_redis import build_owners_redis

        return Owners(clock, build_owners_redis(policy.redis, clock))
    folder = Path(policy.batches.folder) if policy.batches is not None else shared_directory
    if folder is None:
        return Owners(clock)
    from gateway.api.owners_file import OwnersInFile

    return Owners(clock, OwnersInFile(folder / "objects.sqlite3", clock))


def build_batches(policy: StoresPolicy, core: Core) -> Batches | None:
    """What answers /v1/files and /v1/batches; None where the policy keeps none."""
    if policy.batches is None:
        return None
    from gateway.batches.service import Batches

    return Batches(core, policy.batches)
