"""The texts of the policy in force and of the one before it, and why the last change was not taken over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Revision(NamedTuple):
    """A policy that has come into force. `at_s`: when, in seconds since the Unix epoch.

    `texts` are its files by their paths below its folder, the first one in front; None where they are long.
    """

    name: str
    at_s: float
    texts: Mapping[str, bytes] | None


class Refusal(NamedTuple):
    """A changed file that was not taken over, and why."""

    at_s: float
    message: str


class Revisions:
    """Of one process, since its start."""

    def __init__(self, first: Revision) -> None:
        self.in_force = first
        self.before: Revision | None = None
        self.refused: Refusal | None = None
        """None where nothing has been refused since the last one came into force."""

    def applied(self, revision: Revision) -> None:
        """Another one is in force; the same again is no change."""
        if revision.name != self.in_force.name:
            self.before = self.in_force
        self.in_force = revision
        self.refused = None
