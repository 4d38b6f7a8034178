"""What a planted mistake is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """`right` in the file `file` below kernels/ becomes `wrong`, which `case` of operation `op` has to show."""

    name: str
    file: str
    right: str
    wrong: str
    op: str
    case: str
