"""What a planted mistake is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """`right` in the kernels' file `file` becomes `wrong`, which `case` of the operation in file `op` has to show."""

    name: str
    file: str
    right: str
    wrong: str
    op: str
    case: str
