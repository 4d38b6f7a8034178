"""The memory behind the page pool: keys and values of every layer on the device, and the host tier's copies."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from backends.engine.errors import OutOfMemory
from backends.engine.step.plan import Transfers
from kernels.fallback import Fallbacks
from kernels.paging import PAGE_SIZE, PagedKV, allocate_kv

_QUANTIZED = (torch.int8, torch.float8_e4m3fn)
_FLOAT8_SINCE = (8, 9)


class KVShape(Protocol):
    """What of a model's configuration decides the size of its cache."""

    @property
    def num_layers(self) -> int:
        """Layers, each with its own keys and values."""

    @property
    def num_kv_heads(self) -> int:
        """KV heads of a layer."""

    @property
    def head_dim(self) -> int:
        """Numbers in a key or value."""


def page_dtype(wanted: torch.dtype, capability: tuple[int, int], fallbacks: Fallbacks) -> torch.dtype:
    """What pages are kept in on a GPU of this compute capability: `wanted`, or int8 for a float8 that it does not have.

    Both take the same bytes. `fallbacks` is told.
    """
    if wanted != torch.float8_e4m3fn or capability >= _FLOAT8_SINCE:
        return wanted
    fallbacks.note(
        "kv_dtype",
        "keys and values are kept in int8: kv_dtype is 'fp8', which GPUs have from compute capability 8.9 on, and this "
        f"one's is {capability[0]}.{capability[1]}; int8 takes as much memory: say kv_dtype: int8",
    )
    return torch.int8


def page_bytes(config: KVShape, dtype: torch.dtype) -> int:
    """Bytes of one page over all layers, scales included."""
    token_head = config.head_dim * dtype.itemsize + (torch.float16.itemsize if dtype in _QUANTIZED else 0)
    return 2 * config.num_layers * config.num_kv_heads * PAGE_SIZE * token_head


class KVCache:
    """`layers[i]` holds the keys and values of layer i, `num_pages` pages of them.

    All layers lie in one allocation, layer after layer. On the host (pinned where the device is a GPU) one page's
    layers lie together, so that a page moves in one copy a tensor. Raises OutOfMemory where either does not fit.
    """

    def __init__(
        self, config: KVShape, num_pages: int, *, dtype: torch.dtype, device: torch.device, host_pages: int = 0
    ) -> None:
        num_layers = config.num_layers
        self.num_pages = num_pages
        self.host_pages = host_pages
        try:
            whole = allocate_kv(
                num_layers * num_pages, config.num_kv_heads, config.head_dim, dtype=dtype, device=device
            )
            # Of each tensor, as bytes: [layers, pages, bytes], and on the host [pages, layers, bytes].
            self._device = [_as_bytes(tensor, num_layers) for tensor in _tensors(whole)]
            self._host = [
                torch.empty(
                    (host_pages, num_layers, tensor.shape[2]), dtype=torch.uint8, pin_memory=device.type == "cuda"
                )
                for tensor in self._device
            ]
        except RuntimeError as error:  # what torch raises for want of memory, on either side
            page_mib = page_bytes(config, dtype) / 2**20
            raise OutOfMemory(
                f"{num_pages} KV pages on {device} ({num_pages * page_mib:.0f} MiB) and {host_pages} on the host "
                f"({host_pages * page_mib:.0f} MiB) do not fit; give the cache less memory, or quantize it"
            ) from error
        self.layers = [
            PagedKV(*(tensor[layer * num_pages : (layer + 1) * num_pages] for tensor in _tensors(whole)))
            for layer in range(num_layers)
        ]

    def transfer(self, transfers: Transfers) -> None:
        """Copies pages between device and host, on the current stream; does not wait for a GPU."""
        for page, host_page in transfers.to_host:
            for device, host in zip(self._device, self._host, strict=True):
                host[host_page].copy_(device[:, page], non_blocking=True)
        for host_page, page in transfers.to_device:
            for device, host in zip(self._device, self._host, strict=True):
                device[:, page].copy_(host[host_page], non_blocking=True)


def _tensors(kv: PagedKV) -> list[Tensor]:
    return [tensor for tensor in (kv.keys, kv.values, kv.key_scales, kv.value_scales) if tensor is not None]


def _as_bytes(tensor: Tensor, num_layers: int) -> Tensor:
    """A contiguous [layers * pages, ...] tensor as [layers, pages, bytes] uint8, the same memory."""
    num_rows = tensor.shape[0]
    row_bytes = tensor.numel() * tensor.element_size() // num_rows
    return tensor.view(-1).view(torch.uint8).view(num_layers, num_rows // num_layers, row_bytes)
