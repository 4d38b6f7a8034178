"""Time zones as a policy file names them."""

from __future__ import annotations

from datetime import UTC, timezone
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field


def zone_of(name: str) -> ZoneInfo | timezone:
    """A time zone. UTC is known even where the machine has no table of them.

    Raises: ZoneInfoNotFoundError, ValueError, OSError where it is not known.
    """
    return UTC if name == "UTC" else ZoneInfo(name)


def _is_known(value: str) -> str:
    try:
        zone_of(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError('no time zone that this machine knows: names are like "Europe/Berlin"') from None
    return value


TimeZoneName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_is_known)]
"""A name of the IANA database."""
