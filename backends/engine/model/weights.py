"""A model's parameters by their names in the checkpoint: merged with an adapter, joined, quantized, on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from backends.engine.errors import ModelError
from backends.engine.model.adapter import LoraAdapter
from backends.engine.model.checkpoint import Checkpoint
from backends.engine.model.linear import FOUR_BITS, OUTPUT_LAYER, BuiltLinear, Linear, is_packable, make_linear
from backends.engine.model.quantized_formats import QuantizationConfig
from backends.engine.model.quantized_reader import read_quantized
from backends.engine.model.shard import Shard, Split, WeightShare, pieces_of
from kernels.dispatch import QuantizedProduct
from kernels.products.quantized_product import quantized_product_reference

Observer = Callable[[Sequence[str], Tensor], None]
"""Is told what goes into a layer: the modules it is made of, and their common input [tokens, in]."""


class Weights:
    """Hands out each parameter once, and counts what it handed out."""

    def __init__(
        self,
        folder: Path,
        *,
        dtype: torch.dtype | None,
        device: torch.device,
        quantization: str | None = None,
        stored: QuantizationConfig | None = None,
        adapter: Path | None = None,
        shard: Shard | None = None,
        observe: Observer | None = None,
        product: QuantizedProduct = quantized_product_reference,
    ) -> None:
        """`dtype` None is the checkpoint's own; `stored`: how its layers are quantized already. `shard`: only this
        rank's share of the layers that can be divided. `product`: as `make_linear`. Raises ModelError for files that
        are missing or torn, and where quantized weights are to be quantized or merged with an adapter.
        """
        if stored is not None:
            for what, wanted in (("quantization", quantization), ("an adapter", adapter)):
                if wanted is not None:
                    raise ModelError(
                        f"{folder}: the weights are quantized already ({stored.quant_method}), so they cannot take "
                        f"{what}: start from the original, or leave it out"
                    )
        self.shard = Shard() if shard is None else shard
        self._checkpoint = Checkpoint.from_folder(folder)
        self._adapter = None if adapter is None else LoraAdapter(adapter)
        self._device = device
        self._quantization = quantization
        self._stored = stored
        self._dtype = dtype
        self._observe = observe
        self._product = product
        self.num_bytes = 0

    def tensor(self, name: str, *shape: int) -> Tensor:
        """One parameter, a copy of its own. Raises ModelError where it is missing or shaped otherwise."""
        tensor = self._copied(self._read(name, shape))
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
        split: Split | None = None,
        unit: int = 1,
        adds_up: bool = True,
    ) -> Linear:
        """The modules `names` of `out_sizes` outputs as one layer, in that order; a single name may have several sizes.

        `split` "outputs": this rank has its share of each of `out_sizes`, in steps of `unit`; "inputs": its share of
        the inputs, and the ranks' results are added up, unless `adds_up` is False. `quantized` False keeps the layer in
        the model's type. Raises ModelError as `tensor` does.
        """
        pieces = pieces_of(names, out_sizes, in_size, self.shard, split=split, unit=unit)
        biases = None
        # Of results that are added up, one brings the bias.
        if bias and not (split == "inputs" and self.shard.rank):
            read = [piece.cut_rows(self._read(f"{piece.name}.bias", (piece.out_size,))) for piece in pieces]
            biases = self._joined(read)
            self.num_bytes += biases.nbytes
        linear = self._linear(pieces, biases, self._quantization if quantized else None)
        self.num_bytes += linear.num_bytes
        if self._observe is not None:
            linear = _observed(linear, names, self._observe)
        if split == "inputs" and adds_up and self.shard.count > 1:
            linear = _added_up(linear, self.shard)
        return linear

    def stacked(
        self, groups: Sequence[Sequence[str]], out_sizes: Sequence[int], in_size: int, *, split: Split | None = None
    ) -> Tensor | None:
        """What `linear` would make of each group of modules, as one tensor [groups, outputs, inputs].

        None where a layer does not keep its weights as they are: quantized, laid out for the CPU, or observed. Results
        of a split by inputs are not added up. Raises ModelError as `tensor` does.
        """
        if self._quantization is not None or self._stored is not None or self._observe is not None:
            return None
        stack = None
        for number, names in enumerate(groups):
            pieces = pieces_of(names, out_sizes, in_size, self.shard, split=split)
            weight = self._dense(pieces)
            if is_packable(weight):
                return None
            if stack is None:
                stack = weight.new_empty((len(groups), *weight.shape))
                self.num_bytes += stack.nbytes
            stack[number] = weight
        return stack

    def head(self, vocab_size: int, hidden_size: int, *, tied: Tensor | None) -> Linear:
        """The output layer; `tied`: the embedding [vocab, hidden] that the model reads backwards for it.

        Where the other layers have four bits a number, this one has eight: it decides every token.
        """
        quantization = "int8" if self._quantization in FOUR_BITS else self._quantization
        if tied is None:
            linear = self._linear([WeightShare.whole(OUTPUT_LAYER, vocab_size, hidden_size)], None, quantization)
        else:
            weight = tied if self._adapter is None else self._adapter.merge(f"{OUTPUT_LAYER}.weight", tied, tied.dtype)
            linear = make_linear(weight, None, quantization=quantization, product=self._product)
            if weight is tied and quantization is None and not is_packable(weight):
                # Already counted: one tensor serves both ends.
                return linear
        self.num_bytes += linear.num_bytes
        return linear if self._observe is None else _observed(linear, [OUTPUT_LAYER], self._observe)

    def check_complete(self) -> None:
        """Call when everything was read. Raises ModelError where a part of the adapter found no place."""
        if self._adapter is not None:
            self._adapter.check_all_merged()

    def _linear(self, pieces: Sequence[WeightShare], bias: Tensor | None, quantization: str | None) -> Linear:
        linear = None if self._stored is None else self._read_quantized(pieces, bias, self._stored)
        if linear is not None:
            return linear
        return make_linear(self._dense(pieces), bias, quantization=quantization, product=self._product)

    def _dense(self, pieces: Sequence[WeightShare]) -> Tensor:
        return self._joined(
            [piece.cut(self._read(f"{piece.name}.weight", (piece.out_size, piece.in_size))) for piece in pieces]
        )

    def _read_quantized(
        self, pieces: Sequence[WeightShare], bias: Tensor | None, stored: QuantizationConfig
    ) -> Linear | None:
        assert self._dtype is not None, "the embedding is read first"
        try:
            return read_quantized(
                pieces,
                self._checkpoint.find,
                stored,
                bias=bias,
                dtype=self._dtype,
                device=self._device,
                product=self._product,
            )
        except ModelError as error:
            raise ModelError(f"{self._checkpoint.source}: {error}") from error

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A view of the mapped file, or a merged tensor."""
        tensor = self._checkpoint.read(name, shape)
        if self._dtype is None:
            self._dtype = tensor.dtype
        if self._adapter is not None and len(shape) == 2:
            tensor = self._adapter.merge(name, tensor, self._dtype)
        return tensor

    def _joined(self, parts: list[Tensor]) -> Tensor:
        return self._copied(parts[0]) if len(parts) == 1 else torch.cat(parts).to(self._device, self._dtype)

    def _copied(self, tensor: Tensor) -> Tensor:
        """On the device. A copy even where nothing changes: the mapped file may be unaligned, and replaced under a
        running server.
        """
        return tensor.to(self._device, self._dtype, copy=True)


def _observed(linear: Linear, names: Sequence[str], observe: Observer) -> Linear:
    def run(x: Tensor) -> Tensor:
        observe(names, x)
        return linear(x)

    return BuiltLinear(run, linear.num_bytes)


def _added_up(linear: Linear, shard: Shard) -> Linear:
    return BuiltLinear(lambda x: shard.add_up(linear(x)), linear.num_bytes)
