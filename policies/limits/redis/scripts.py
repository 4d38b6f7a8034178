"""The scripts that count inside Redis, and the bytes of a command that runs one.

A script is known by the digest of its text, so gateways of several versions do not disturb each other at one Redis.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal, TypeAlias

ScriptName: TypeAlias = Literal["reserve", "settle", "renew", "adopt", "book", "refill"]

_FLAGS: dict[ScriptName, str] = {
    "reserve": "",
    # They free memory, or say what is true already: a Redis that is full takes them all the same.
    "settle": " flags=allow-oom",
    "book": " flags=allow-oom",
    "renew": "",
    "adopt": "",
    "refill": "",
}


class Scripts:
    """All of them, for counters whose keys begin with `{prefix:limits}`: the braces keep them in one cluster slot."""

    def __init__(self, prefix: str) -> None:
        self.key = b"{%b:limits}" % prefix.encode()
        folder = Path(__file__).parent
        common = (folder / "common.lua").read_text()
        self.texts = {
            name: f"#!lua{flags}\n{common}{(folder / f'{name}.lua').read_text()}".encode()
            for name, flags in _FLAGS.items()
        }
        self.digests = {name: hashlib.sha1(text).hexdigest().encode() for name, text in self.texts.items()}

    def loading(self) -> list[bytes]:
        """The commands that make Redis know them."""
        return [pack_command(b"SCRIPT", b"LOAD", text) for text in self.texts.values()]

    def head(self, name: ScriptName, *arguments: bytes, more: int) -> bytes:
        """How a command begins that runs a script: with these arguments, and `more` that are still to come."""
        words = (b"EVALSHA", self.digests[name], b"1", self.key, *arguments)
        return b"*%d\r\n" % (len(words) + more) + b"".join(map(pack_word, words))

    def command(self, name: ScriptName, *arguments: bytes) -> bytes:
        """A command that runs a script."""
        return self.head(name, *arguments, more=0)


def pack_word(word: bytes) -> bytes:
    """A word of a command, as Redis reads it."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def pack_command(*words: bytes) -> bytes:
    """A command, as Redis reads it."""
    return b"*%d\r\n" % len(words) + b"".join(map(pack_word, words))
