"""The APIs of the gateway's own: a row each, found by the first word of their paths, with and without /v1."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from starlette.types import ASGIApp

from gateway.api.cache import CacheApi
from gateway.api.models import Models
from gateway.core import Core

if TYPE_CHECKING:
    from gateway.batches.service import Batches


class OwnApi(NamedTuple):
    """`make` gives None where this gateway does not have it; then its paths pass through like others. So do calls with
    a method that is not in `methods`; empty: it takes all."""

    root: str
    make: Callable[[Core, Batches | None], ASGIApp | None]
    methods: frozenset[str] = frozenset()


def _files(core: Core, batches: Batches | None) -> ASGIApp | None:
    if batches is None:
        return None
    from gateway.api.files import FilesApi

    return FilesApi(core, batches)


def _batches(core: Core, batches: Batches | None) -> ASGIApp | None:
    if batches is None:
        return None
    from gateway.api.batches import BatchesApi

    return BatchesApi(core, batches)


def _keys(core: Core, _: Batches | None) -> ASGIApp | None:
    if core.keys is None:
        return None
    from gateway.api.keys import KeysApi

    return KeysApi(core, core.keys)


OWN_APIS = (
    OwnApi("models", lambda core, _: Models(core), frozenset({"GET", "HEAD"})),
    OwnApi("cache", lambda core, _: CacheApi(core)),
    OwnApi("files", _files),
    OwnApi("batches", _batches),
    OwnApi("admin", _keys),
)
