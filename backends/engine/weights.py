"""A model's parameters by their names in the checkpoint: merged with an adapter, joined, quantized, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from backends.engine.adapter import LoraAdapter
from backends.engine.checkpoint import Checkpoint
from backends.engine.linear import Linear, make_linear


class Weights:
    """Hands out each parameter once, and counts what it handed out."""

    def __init__(
        self,
        folder: Path,
        *,
        dtype: torch.dtype | None,
        device: torch.device,
        quantization: str | None = None,
        adapter: Path | None = None,
    ) -> None:
        """`dtype` None is the checkpoint's own. Raises ModelError for files that are missing or torn."""
        self._checkpoint = Checkpoint.from_folder(folder)
        self._adapter = None if adapter is None else LoraAdapter(adapter)
        self._device = device
        self._quantization = quantization
        self._dtype = dtype
        self.num_bytes = 0

    def tensor(self, name: str, *shape: int) -> Tensor:
        """One parameter, a copy of its own. Raises ModelError where it is missing or shaped otherwise."""
        tensor = self._read(name, shape)
        self.num_bytes += tensor.nbytes
        return tensor

    def linear(
        self,
        names: Sequence[str],
        out_sizes: Sequence[int],
        in_size: int,
        *,
        bias: bool = False,
        quantized: bool = True,
    ) -> Linear:
        """The modules `names` of `out_sizes` outputs as one layer, in that order.

        `quantized` False keeps the layer in the model's type. Raises ModelError as `tensor` does.
        """
        sizes = list(zip(names, out_sizes, strict=True))
        parts = [self._read(f"{name}.weight", (size, in_size)) for name, size in sizes]
        biases = [self._read(f"{name}.bias", (size,)) for name, size in sizes] if bias else []
        return self._made(parts, biases, quantized=quantized)

    def tied_head(self, embedding: Tensor) -> Linear:
        """The output layer of a model that reads its embedding [vocab, hidden] backwards."""
        weight = embedding if self._adapter is None else self._adapter.merge("lm_head.weight", embedding)
        if self._quantization is None and weight is embedding:
            # Already counted: one tensor serves both ends.
            return make_linear(weight, None, quantization=None)
        return self._made([weight], [])

    def check_complete(self) -> None:
        """Call when everything was read. Raises ModelError where a part of the adapter found no place."""
        if self._adapter is not None:
            self._adapter.check_all_merged()

    def _made(self, parts: list[Tensor], biases: list[Tensor], *, quantized: bool = True) -> Linear:
        linear = make_linear(
            torch.cat(parts) if len(parts) > 1 else parts[0],
            torch.cat(biases) if biases else None,
            quantization=self._quantization if quantized else None,
        )
        self.num_bytes += linear.num_bytes
        return linear

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._checkpoint.read(name, shape)
        if self._dtype is None:
            self._dtype = tensor.dtype
        if self._adapter is not None and len(shape) == 2:
            tensor = self._adapter.merge(name, tensor)
        # A copy even where nothing changes: the mapped file may be unaligned, and replaced under a running server.
        return tensor.to(self._device, self._dtype, copy=True)
