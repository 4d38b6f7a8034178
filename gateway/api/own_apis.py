"""The APIs of the gateway's own: a row each, found by the first word of their paths, with and without /v1."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from starlette.types import ASGIApp

from gateway.api.cache import CacheApi
from gateway.api.drafts import DraftsApi
from gateway.api.models import Models
from gateway.core import Core

if TYPE_CHECKING:
    from gateway.batches.service import Batches
    from gateway.ledger.reader import LedgerReader


class Needs(NamedTuple):
    """What an API may be made of."""

    core: Core
    batches: Batches | None
    reader: LedgerReader | None


class OwnApi(NamedTuple):
    """`make` gives None where this gateway does not have it; then its paths pass through like others. So do calls with
    a method that is not in `methods`; empty: it takes all."""

    root: str
    make: Callable[[Needs], ASGIApp | None]
    methods: frozenset[str] = frozenset()


def _files(needs: Needs) -> ASGIApp | None:
    if needs.batches is None:
        return None
    from gateway.api.files import FilesApi

    return FilesApi(needs.core, needs.batches)


def _batches(needs: Needs) -> ASGIApp | None:
    if needs.batches is None:
        return None
    from gateway.api.batches import BatchesApi

    return BatchesApi(needs.core, needs.batches)


def _keys(needs: Needs) -> ASGIApp | None:
    if needs.core.keys is None:
        return None
    from gateway.api.keys import KeysApi

    return KeysApi(needs.core, needs.core.keys)


def _calls(needs: Needs) -> ASGIApp | None:
    if needs.reader is None:
        return None
    from gateway.api.calls import CallsApi

    return CallsApi(needs.core, needs.reader)


OWN_APIS = (
    OwnApi("models", lambda needs: Models(needs.core), frozenset({"GET", "HEAD"})),
    OwnApi("cache", lambda needs: CacheApi(needs.core)),
    OwnApi("files", _files),
    OwnApi("batches", _batches),
    OwnApi("admin", _keys),
    OwnApi("calls", _calls),
    OwnApi("slipstream", lambda needs: DraftsApi(needs.core)),
)
