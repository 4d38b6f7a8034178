"""Linear layers in every form of weights: near their dequantized product, quick forms and plain ones alike."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from backends.engine.errors import ModelError
from backends.engine.model.decoder import load_decoder
from backends.engine.model.linear import QUANTIZATIONS, WIDENED_NUMBERS, make_linear, quantize_weight, quantized_linear
from backends.engine.model.quantize import quantize_folder
from kernels.dispatch import QuantizedProduct, select_ops
from kernels.products.quantized_product import BuiltProduct
from kernels.products.w4a16 import GroupWeight, quantize_int4
from kernels.products.w8 import RowWeight
from tests.support.engine.tiny_models import save_tiny_model, tiny_config

SIZES = {"small": (48, 64), "odd": (37, 30), "packed": (544, 512)}
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 5e-3, torch.float16: 2e-3}


def layer(out_size: int, in_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A random weight and bias."""
    generator = torch.Generator().manual_seed(out_size)
    weight = torch.randn(out_size, in_size, generator=generator) / in_size**0.5
    return weight.to(dtype), torch.randn(out_size, generator=generator).to(dtype)


def tokens(count: int, in_size: int, dtype: torch.dtype) -> Tensor:
    """Random inputs, each token of another magnitude."""
    generator = torch.Generator().manual_seed(count)
    return (torch.randn(count, in_size, generator=generator) * torch.logspace(-2, 2, count).unsqueeze(1)).to(dtype)


def worst_row_error(out: Tensor, expected: Tensor) -> float:
    """Largest RMS error of a token, over the RMS of that token."""
    return float(((out.double() - expected).norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("dtype", BOUNDS.keys(), ids=["float32", "bf16", "fp16"])
@pytest.mark.parametrize("count", [1, 9])
def test_linear_dense_equals_product(size: tuple[int, int], dtype: torch.dtype, count: int) -> None:
    """Whether oneDNN lays the weight out or not, the numbers are the product's."""
    weight, bias = layer(*size, dtype)
    x = tokens(count, size[1], dtype)

    for given in (bias, None):
        out = make_linear(weight, given)(x)

        expected = x.double() @ weight.double().T + (0 if given is None else given.double())
        assert out.dtype == dtype
        assert worst_row_error(out, expected) <= BOUNDS[dtype]


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("dtype", BOUNDS.keys(), ids=["float32", "bf16", "fp16"])
@pytest.mark.parametrize("count", [1, 9])
def test_linear_quantized_stays_near_its_dequantized_weight(
    quantization: str, size: tuple[int, int], dtype: torch.dtype, count: int
) -> None:
    """The weight's rounding is the only large error; activations rounded to int8 add one percent, token by token."""
    weight, bias = layer(*size, dtype)
    x = tokens(count, size[1], dtype)
    rounded = quantize_weight(weight, quantization).dequantized(torch.float64)

    for given in (bias, None):
        out = make_linear(weight, given, quantization=quantization)(x)

        product = x.double() @ rounded.T
        expected = product + (0 if given is None else given.double())
        bound = 0.015 if quantization in ("int8", "w8a8") else 6e-3
        error = (out.double() - expected).norm(dim=1)
        assert out.dtype == dtype
        assert (error <= bound * (product.norm(dim=1) + expected.norm(dim=1))).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize(("quantization", "count"), [(None, 64), ("int8", 1), ("int8", 16)])
@pytest.mark.timed
def test_linear_half_precision_never_falls_back_to_a_loop(
    request: pytest.FixtureRequest, dtype: torch.dtype, quantization: str | None, count: int
) -> None:
    """Also where the processor has no instructions for it, half precision takes a small factor of float32's time.

    On one thread: where cores are busy, several spend their time on waiting for each other.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    request.addfinalizer(lambda: torch.set_num_threads(num_threads))

    def best_s(dtype: torch.dtype) -> float:
        weight, _ = layer(1024, 1024, dtype)
        linear, x = make_linear(weight, None, quantization=quantization), tokens(count, 1024, dtype)
        times = []
        for _ in range(5):
            began = time.process_time()
            linear(x)
            times.append(time.process_time() - began)
        return min(times)

    assert best_s(dtype) <= 4 * best_s(torch.float32)


def test_linear_large_layer_is_widened_part_by_part() -> None:
    """Half-precision layers of more numbers than are widened at once are put together in order."""
    weight, bias = layer(2 * WIDENED_NUMBERS // 64 + 5, 64, torch.float16)
    x = tokens(8, 64, torch.float16)

    out = make_linear(weight, bias)(x)

    assert worst_row_error(out, x.double() @ weight.double().T + bias.double()) <= BOUNDS[torch.float16]


@pytest.mark.parametrize("quantization", [None, *QUANTIZATIONS])
def test_linear_token_alone_equals_token_among_others(quantization: str | None) -> None:
    """What a token gets does not hang on its neighbours beyond the last digits of the type."""
    weight, bias = layer(544, 512, torch.float32)
    linear = make_linear(weight, bias, quantization=quantization)
    x = tokens(20, 512, torch.float32)

    among = linear(x)

    alone = torch.cat([linear(x[i : i + 1]) for i in range(20)])
    assert worst_row_error(among, alone.double()) <= 5e-3


@pytest.mark.parametrize("quantization", [None, *QUANTIZATIONS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bf16"])
def test_linear_token_of_zeros_brings_the_bias(quantization: str | None, dtype: torch.dtype) -> None:
    """Activations without a largest number divide by no zero, alone or among others."""
    weight, bias = layer(64, 128, dtype)
    linear = make_linear(weight, bias, quantization=quantization)
    x = tokens(3, 128, dtype)
    x[1] = 0

    torch.testing.assert_close(linear(x)[1], bias)
    torch.testing.assert_close(linear(x[1:2])[0], bias)


def test_linear_bytes_follow_the_format() -> None:
    """int8 is about half of bf16, int4 about a quarter."""
    weight, _ = layer(544, 512, torch.bfloat16)

    sizes = {kind: make_linear(weight, None, quantization=kind).num_bytes for kind in (None, "int8", "int4")}

    assert sizes[None] == weight.nbytes
    assert weight.nbytes / 2 <= sizes["int8"] <= weight.nbytes * 0.51
    assert weight.nbytes / 4 <= sizes["int4"] <= weight.nbytes * 0.28


def test_linear_int4_zero_points_reach_the_product() -> None:
    """A weight far from zero keeps its offset through torch's own 4-bit product."""
    weight = quantize_int4(layer(64, 256, torch.float32)[0] + 0.5, 64, symmetric=False)
    x = tokens(5, 256, torch.bfloat16)

    out = quantized_linear(weight, None, dtype=torch.bfloat16)(x)

    assert worst_row_error(out, x.double() @ weight.dequantized(torch.float64).T) <= 8e-3


def test_linear_smoothing_saves_w8a8_from_an_outlier() -> None:
    """One input a thousand times the others costs them their digits, unless its range goes to the weights."""
    weight, bias = layer(64, 256, torch.float32)
    x = torch.randn(16, 256, generator=torch.Generator().manual_seed(1))
    x[:, 7] *= 1000
    weight[:, 7] /= 1000
    smoothing = (x.abs().amax(0) / weight.abs().amax(0)).sqrt()
    expected = x.double() @ weight.double().T + bias.double()

    plain = make_linear(weight, bias, quantization="w8a8")(x)
    smoothed = make_linear(weight, bias, quantization="w8a8", smoothing=smoothing)(x)

    assert worst_row_error(smoothed, expected) <= 0.03
    assert worst_row_error(plain, expected) > 5 * worst_row_error(smoothed, expected)


def test_linear_input_rows_apart_in_memory_are_read_rightly() -> None:
    """A slice of a wider tensor is an input like any other."""
    weight, bias = layer(544, 512, torch.bfloat16)
    wide = tokens(6, 700, torch.bfloat16)

    for quantization in (None, *QUANTIZATIONS):
        linear = make_linear(weight, bias, quantization=quantization)

        assert torch.equal(linear(wide[:, 50:562]), linear(wide[:, 50:562].contiguous()))


def test_linear_unknown_quantization_is_refused() -> None:
    """The message lists what is known."""
    weight, bias = layer(8, 8, torch.float32)

    with pytest.raises(ValueError, match="'int3' is unknown; known are int8, w8a8, int4, nf4, fp8"):
        make_linear(weight, bias, quantization="int3")


def test_linear_odd_inputs_refuse_four_bits() -> None:
    """An odd width has no pairs to pack, and the message says what to take instead."""
    weight, _ = layer(8, 9, torch.float32)

    with pytest.raises(ModelError, match="9 inputs cannot be cut into groups for nf4; use int8"):
        make_linear(weight, None, quantization="nf4")


def noted(calls: list[tuple[str, torch.dtype, bool]]) -> QuantizedProduct:
    """A product that notes (what the weight is, the type of the inputs, whether they are rounded), and adds one."""

    def product(
        weight: RowWeight | GroupWeight, bias: Tensor | None, *, dtype: torch.dtype, round_input: bool = False
    ) -> BuiltProduct:
        kind = "groups" if isinstance(weight, GroupWeight) else str(weight.stored.dtype).removeprefix("torch.")
        calls.append((kind, dtype, round_input))
        return lambda x: x + 1, 7

    return product


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ("int8", ("int8", torch.bfloat16, False)),
        ("w8a8", ("int8", torch.bfloat16, True)),
        ("fp8", ("float8_e4m3fn", torch.bfloat16, False)),
        ("int4", ("groups", torch.bfloat16, False)),
        ("nf4", ("groups", torch.bfloat16, False)),
    ],
)
def test_linear_elsewhere_than_on_the_cpu_is_the_product_that_it_is_given(
    quantization: str, expected: tuple[str, torch.dtype, bool]
) -> None:
    """What a GPU multiplies with comes from the engine's operations; the CPU has forms of its own."""
    weight, _ = layer(544, 512, torch.bfloat16)
    calls: list[tuple[str, torch.dtype, bool]] = []

    elsewhere = make_linear(weight.to("meta"), None, quantization=quantization, product=noted(calls))

    assert calls == [expected]
    assert elsewhere.num_bytes == 7
    assert torch.equal(elsewhere(torch.ones(1, 2)), torch.full((1, 2), 2.0))
    make_linear(weight, None, quantization=quantization, product=noted(calls))
    assert len(calls) == 1


@pytest.mark.parametrize("is_stored", [False, True], ids=["rounded-at-load", "stored"])
def test_load_decoder_hands_its_product_to_every_quantized_layer(tmp_path: Path, is_stored: bool) -> None:
    """Attention's two, the feed-forward's two and the output layer, whether they were rounded before or at load."""
    save_tiny_model(tmp_path / "plain", tiny_config("Llama", num_hidden_layers=1, tie_word_embeddings=False))
    folder, quantization = tmp_path / "plain", None if is_stored else "int4"
    if is_stored:
        folder = tmp_path / "int4"
        quantize_folder(tmp_path / "plain", folder, "int4", progress=lambda *_: None)
    calls: list[tuple[str, torch.dtype, bool]] = []
    ops = replace(select_ops("cpu"), quantized_product=noted(calls))

    load_decoder(folder, dtype=torch.bfloat16, device=torch.device("meta"), ops=ops, quantization=quantization)

    assert [kind for kind, _, _ in calls] == ["groups"] * 4 + ["int8"]
