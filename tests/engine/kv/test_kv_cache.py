"""The tensors behind the pool: their shapes and size, and pages that survive the way to the host and back."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from backends.engine.errors import OutOfMemory
from backends.engine.kv.memory import KVCache, page_bytes
from backends.engine.step.plan import Transfers
from kernels.paging import PAGE_SIZE, PagedKV

_CPU = torch.device("cpu")
_DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn]


@dataclass(frozen=True)
class Shape:
    """A model, as far as its cache is concerned."""

    num_layers: int = 3
    num_kv_heads: int = 2
    head_dim: int = 8


def _tensors(kv: PagedKV) -> list[Tensor]:
    return [tensor for tensor in (kv.keys, kv.values, kv.key_scales, kv.value_scales) if tensor is not None]


def _bits(kv: PagedKV, page: int) -> list[Tensor]:
    return [tensor[page].contiguous().view(torch.uint8).clone() for tensor in _tensors(kv)]


def _fill(cache: KVCache) -> None:
    """Random bits everywhere."""
    generator = torch.Generator().manual_seed(0)
    for kv in cache.layers:
        for tensor in _tensors(kv):
            raw = tensor.view(torch.uint8)
            raw.copy_(torch.randint(0, 256, raw.shape, generator=generator, dtype=torch.uint8))


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_kv_cache_layers_are_as_kernels_take_them(dtype: torch.dtype) -> None:
    """Each layer is contiguous [pages, kv_heads, PAGE_SIZE, head_dim], zero at first, with scales when quantized."""
    cache = KVCache(Shape(), 5, dtype=dtype, device=_CPU)

    assert len(cache.layers) == 3
    for kv in cache.layers:
        assert kv.keys.shape == kv.values.shape == (5, 2, PAGE_SIZE, 8)
        assert kv.keys.dtype == dtype
        assert kv.keys.is_contiguous()
        assert not kv.keys.view(torch.uint8).any()
        assert (kv.key_scales is not None) == (dtype in (torch.int8, torch.float8_e4m3fn))


def test_kv_cache_layers_do_not_overlap() -> None:
    """Writing one layer's last page leaves the next layer alone."""
    cache = KVCache(Shape(), 2, dtype=torch.float32, device=_CPU)

    cache.layers[0].keys.fill_(1.0)

    assert not cache.layers[1].keys.any()
    assert not cache.layers[0].values.any()


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_kv_cache_page_bytes_counts_every_tensor(dtype: torch.dtype) -> None:
    """The size that budgets are made with is the size that is allocated."""
    cache = KVCache(Shape(), 7, dtype=dtype, device=_CPU)

    allocated = sum(tensor.numel() * tensor.element_size() for kv in cache.layers for tensor in _tensors(kv))

    assert page_bytes(Shape(), dtype) * 7 == allocated


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_kv_cache_page_survives_the_way_to_the_host_and_back(dtype: torch.dtype) -> None:
    """Bit for bit, in every layer, scales included, into another page, and no other page changes."""
    cache = KVCache(Shape(), 4, dtype=dtype, device=_CPU, host_pages=3)
    _fill(cache)
    before = [[_bits(kv, page) for page in range(4)] for kv in cache.layers]

    cache.transfer(Transfers(to_host=((1, 2), (3, 0))))
    cache.transfer(Transfers(to_device=((2, 0), (0, 1))))

    for kv, old in zip(cache.layers, before, strict=True):
        for page, source in enumerate((1, 3, 2, 3)):
            assert all(map(torch.equal, _bits(kv, page), old[source]))


def test_kv_cache_page_copied_out_and_filled_anew_in_one_step_loses_nothing() -> None:
    """Copies to the host come first: two pages change places through the host in a single step."""
    cache = KVCache(Shape(), 2, dtype=torch.float32, device=_CPU, host_pages=2)
    _fill(cache)
    before = [[_bits(kv, page) for page in range(2)] for kv in cache.layers]

    cache.transfer(Transfers(to_host=((0, 0), (1, 1)), to_device=((1, 0), (0, 1))))

    for kv, old in zip(cache.layers, before, strict=True):
        assert all(map(torch.equal, _bits(kv, 0), old[1]))
        assert all(map(torch.equal, _bits(kv, 1), old[0]))


def test_kv_cache_that_does_not_fit_says_how_much_it_wants() -> None:
    """The allocator's error becomes one that names the sizes."""
    with pytest.raises(OutOfMemory, match=r"1099511627776 KV pages on cpu \(\d+ MiB\)"):
        KVCache(Shape(), 2**40, dtype=torch.float32, device=_CPU)
