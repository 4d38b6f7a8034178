"""Parses the directives of a client's `cache-control` field that a route respects."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from policies.cache.settings import ClientControl

_MAX_DIGITS = 10
"""An age with more digits is longer than any answer is kept, so it limits nothing."""


class Control(msgspec.Struct, frozen=True):
    """Whether a stored answer may be used and the new one stored, and the maximum age in seconds (None: any age)."""

    may_read: bool = True
    may_write: bool = True
    max_age_s: float | None = None


UNRESTRICTED = Control()


def parse_control(value: str, honoured: Collection[ClientControl]) -> Control:
    """The honoured directives of one field value; others, and malformed ones, are ignored. Never raises.

    `max-age=0` means no-cache. Of several ages the smallest holds.
    """
    if not value:
        return UNRESTRICTED
    may_read = may_write = True
    max_age_s: float | None = None
    for directive in value.lower().split(","):
        name, _, argument = directive.strip().partition("=")
        if name not in honoured:
            continue
        if name == "no-store" and not argument:
            may_read = may_write = False
        elif name == "no-cache" and not argument:
            may_read = False
        elif name == "max-age":
            argument = argument.strip('"')
            if argument.isascii() and argument.isdigit() and len(argument) <= _MAX_DIGITS:
                max_age_s = min(float(argument), max_age_s) if max_age_s is not None else float(argument)
    return Control(may_read and max_age_s != 0, may_write, max_age_s)
