"""How much one JSON body may hold: decoding takes time by the member, in which nobody else is served."""

from __future__ import annotations

from backends.errors import BodyTooLarge

MAX_PARTS = 200_000
"""Names, objects and lists of a body. Two million names in one object took three seconds to decode; an honest body has
a few thousand. Of values there may be ten times as many: lists of tokens are long, and each takes less of it."""
COUNTED_FROM_BYTES = 2 * MAX_PARTS
"""No shorter body has so many: a list within a list takes two bytes, and the other parts and ten values take more."""
_PIECE_BYTES = 2**17


def check_members(raw: bytes, max_parts: int = MAX_PARTS, piece_bytes: int = _PIECE_BYTES) -> None:
    """Raises: BodyTooLarge for JSON with more parts, or ten times as many values. Other bytes may pass or be refused.

    Takes a piece at a time, so that in a thread of its own it holds up nobody.
    """
    parts = values = begin = 0
    in_text = False
    while begin < len(raw):
        piece = raw[begin : begin + piece_bytes]
        begin += len(piece)
        if piece.endswith(b"\\") and (len(piece) - len(piece.rstrip(b"\\"))) % 2 and begin < len(raw):
            # What it escapes is in the next piece.
            piece = piece[:-1]
            begin -= 1
        if in_text and b'"' not in piece:
            continue
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        texts = piece.split(b'"')
        outside = b"".join(texts[in_text::2])
        in_text ^= len(texts) % 2 == 0
        parts += outside.count(b":") + outside.count(b"[") + outside.count(b"{")
        values += outside.count(b",")
        if parts > max_parts or values > 10 * max_parts:
            what = f"{max_parts} names, objects and lists" if parts > max_parts else f"{10 * max_parts} values"
            raise BodyTooLarge(f"the body has more than {what}; send less in one, or several of them")
