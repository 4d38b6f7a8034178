"""GPTQ's and AWQ's layouts packed number by number, slowly and by their definitions, to hold the readers against."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Packer = Callable[[list[list[int]], list[list[int]]], tuple[Tensor, Tensor]]
"""codes [in][out] and zeros [groups][out] -> qweight and qzeros."""


def pack_words(numbers: list[int]) -> int:
    """Eight numbers 0..15 as one int32, the first lowest."""
    return _signed(sum(number << (4 * place) for place, number in enumerate(numbers)))


def pack_triples(numbers: list[int]) -> list[int]:
    """32 numbers 0..7 as three int32, the first lowest."""
    bits = "".join(f"{number:03b}" for number in reversed(numbers))
    return [_signed(int(bits[start : start + 32], 2)) for start in (64, 32, 0)]


def _signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word


def pack_gptq(codes: list[list[int]], zeros: list[list[int]]) -> tuple[Tensor, Tensor]:
    """codes [in][out] and zeros [groups][out] as GPTQ's first format packs them."""
    num_in, num_out = len(codes), len(codes[0])
    qweight = [
        [pack_words([codes[start + i][out] for i in range(8)]) for out in range(num_out)]
        for start in range(0, num_in, 8)
    ]
    qzeros = [
        [pack_words([(zero - 1) % 16 for zero in row[start : start + 8]]) for start in range(0, num_out, 8)]
        for row in zeros
    ]
    return torch.tensor(qweight, dtype=torch.int32), torch.tensor(qzeros, dtype=torch.int32)


def pack_awq(codes: list[list[int]], zeros: list[list[int]]) -> tuple[Tensor, Tensor]:
    """codes [in][out] and zeros [groups][out] as AWQ packs them: outputs 0, 2, 4, 6, 1, 3, 5, 7 of each eight."""

    def rows(numbers: list[list[int]]) -> Tensor:
        return torch.tensor(
            [
                [
                    pack_words([row[start + place] for place in (0, 2, 4, 6, 1, 3, 5, 7)])
                    for start in range(0, len(row), 8)
                ]
                for row in numbers
            ],
            dtype=torch.int32,
        )

    return rows(codes), rows(zeros)


def pack_gptq3(codes: list[list[int]], zeros: list[list[int]]) -> tuple[Tensor, Tensor]:
    """As `pack_gptq`, with three bits a number."""

    def along_rows(numbers: list[list[int]]) -> Tensor:
        packed = [
            [word for start in range(0, len(row), 32) for word in pack_triples(row[start : start + 32])]
            for row in numbers
        ]
        return torch.tensor(packed, dtype=torch.int32)

    by_output = [list(column) for column in zip(*codes, strict=True)]
    return along_rows(by_output).T.contiguous(), along_rows([[(zero - 1) % 8 for zero in row] for row in zeros])
