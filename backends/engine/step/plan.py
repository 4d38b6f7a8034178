"""What one step does: made by the scheduler, carried out by the runner."""

from __future__ import annotations

from dataclasses import dataclass

from backends.engine.errors import EngineError
from backends.engine.sequence import Sequence, Slice


@dataclass(frozen=True, slots=True)
class Transfers:
    """Pages to copy between the device and host memory before a step's forward pass.

    Right only in this order: all of `to_host`, (page, host page), then all of `to_device`, (host page, page). A page
    may be copied out, then be filled anew in the same step; a host page that is read is never overwritten before.
    """

    to_host: tuple[tuple[int, int], ...] = ()
    to_device: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. Slices that decode come first; no sequence has more than one.

    `transfers` are carried out even where `slices` is empty: the pages are already accounted for. `failed` sequences
    have left the scheduler, their pages freed; each comes with what to tell its client.
    """

    slices: tuple[Slice, ...]
    transfers: Transfers = Transfers()
    failed: tuple[tuple[Sequence, EngineError], ...] = ()
