"""Everything that msgspec raises for bytes that are not the JSON they should be; `except NOT_JSON` means just that."""

from __future__ import annotations

import msgspec

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Malformed or of another shape; invalid UTF-8 inside of a text, which is decoded late; nested too deep."""
