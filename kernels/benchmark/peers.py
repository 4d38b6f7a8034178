"""What the kernels are timed beside: PyTorch's own, and others' where they are installed.

A peer is a function from the sets of arguments that a case was built with, one for each copy of the buffers, to the
same work on each of them. It raises what it likes where it cannot do it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels.benchmark.timing import Work
from kernels.operation import Arguments, Result
from kernels.paging import PAGE_SIZE

Peer = Callable[[Sequence[Arguments]], list[Work]]


def peers_of(op: str, arguments: Arguments, *, compiled: bool) -> dict[str, Peer]:
    """Those that can do this case of an operation, by name; `compiled`: also those that first compile for seconds."""
    finders = {
        "paged_decode": _attention_peers,
        "paged_prefill": _attention_peers,
        "cascade": _cascade_peers,
        "norm": _norm_peers,
        "act": _act_peers,
        "rope_store": _rope_store_peers,
        "w4a16": _product_peers,
        "w8": _product_peers,
        "w8a8": _product_peers,
        "sample": _sample_peers,
    }
    found = finders[op](arguments) if op in finders else {}
    return {name: peer for name, peer in found.items() if compiled or name not in COMPILED}


COMPILED = ("torch.compile", "FlexAttention")
"""Peers that PyTorch compiles for each case."""


def _each(work: Callable[[Arguments], Work]) -> Peer:
    return lambda sets: [work(arguments) for arguments in sets]


def _attention_peers(arguments: Arguments) -> dict[str, Peer]:
    kv, plan = arguments["kv"], arguments["plan"]
    counts, lengths = set(plan.query_starts.diff().tolist()), set(plan.kv_lengths.tolist())
    is_plain = not arguments.get("window") and not arguments["softcap"] and kv.key_scales is None
    is_uniform = len(counts) == len(lengths) == 1 and (counts == {1} or counts == lengths)
    if not (is_plain and is_uniform):
        return {}
    return {"SDPA": _each(_sdpa), "FlexAttention": _flex_attention}


def _contiguous(arguments: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    """q [sequences, heads, queries, D], keys and values [sequences, kv_heads, length, D] of sequences of one length."""
    q, kv, plan = arguments["q"], arguments["kv"], arguments["plan"]
    num_sequences, length = plan.kv_lengths.shape[0], int(plan.kv_lengths[0])
    table = plan.page_table[:, : -(-length // PAGE_SIZE)].long()
    # [sequences, pages, kv_heads, PAGE_SIZE, D] with the pages of a head brought together.
    keys, values = (pages[table].transpose(1, 2).flatten(2, 3)[:, :, :length] for pages in (kv.keys, kv.values))
    rows = q.unflatten(0, (num_sequences, -1)).transpose(1, 2)
    return rows.contiguous(), keys.contiguous(), values.contiguous()


def _sdpa(arguments: Arguments) -> Work:
    q, keys, values = _contiguous(arguments)
    return lambda: functional.scaled_dot_product_attention(
        q, keys, values, is_causal=q.shape[2] > 1, scale=arguments["scale"], enable_gqa=True
    )


def _flex_attention(sets: Sequence[Arguments]) -> list[Work]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    attend = torch.compile(flex_attention, dynamic=False)
    works: list[Work] = []
    for arguments in sets:
        q, keys, values = _contiguous(arguments)
        mask, count = None, q.shape[2]
        if count > 1:
            mask = create_block_mask(_is_seen, None, None, count, count, device=str(q.device))
        works.append(partial(attend, q, keys, values, block_mask=mask, scale=arguments["scale"], enable_gqa=True))
    return works


def _is_seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


def _cascade_peers(arguments: Arguments) -> dict[str, Peer]:
    del arguments

    def decode(given: Arguments) -> Work:
        from kernels.attention.decode_kernel import prepare_paged_decode
        from kernels.jit import run

        _, launches = prepare_paged_decode(**{name: value for name, value in given.items() if name != "shared"})
        return partial(run, launches)

    return {"paged_decode": _each(decode)}


def _compiled(function: Callable[..., Result]) -> Peer:
    """What PyTorch's compiler makes of a function of the operation's arguments."""

    def make(sets: Sequence[Arguments]) -> list[Work]:
        compiled = torch.compile(function, dynamic=False)
        return [partial(compiled, **arguments) for arguments in sets]

    return make


def _norm_peers(arguments: Arguments) -> dict[str, Peer]:
    from kernels.rows.norm import rms_norm_reference

    peers: dict[str, Peer] = {"torch.compile": _compiled(rms_norm_reference)}
    if arguments["residual"] is not None and find_spec("liger_kernel"):
        peers["liger"] = _each(_liger_norm)
    return peers


def _liger_norm(arguments: Arguments) -> Work:
    function: Any = import_module("liger_kernel.ops.fused_add_rms_norm").LigerFusedAddRMSNormFunction
    x, residual, weight = (arguments[name] for name in ("x", "residual", "weight"))
    return lambda: function.apply(x, residual, weight, arguments["eps"], arguments["offset"], "llama", False)


def _act_peers(arguments: Arguments) -> dict[str, Peer]:
    from kernels.rows.act import gated_activation_reference

    peers: dict[str, Peer] = {"torch.compile": _compiled(gated_activation_reference)}
    if arguments["kind"] == "silu" and find_spec("liger_kernel"):
        peers["liger"] = _each(_liger_act)
    return peers


def _liger_act(arguments: Arguments) -> Work:
    function: Any = import_module("liger_kernel.ops.swiglu").LigerSiLUMulFunction
    # It takes two tensors, which are contiguous here as from two layers of their own.
    gate, up = (half.contiguous() for half in arguments["gate_up"].chunk(2, dim=1))
    return lambda: function.apply(gate, up)


def _rope_store_peers(arguments: Arguments) -> dict[str, Peer]:
    kv, plan = arguments["kv"], arguments["plan"]
    is_plain = kv.key_scales is None and plan.cos_sin.shape[1] == kv.keys.shape[3] and arguments["q_norm"] is None
    return {"torch.compile": _compiled_rope_store} if is_plain else {}


def _compiled_rope_store(sets: Sequence[Arguments]) -> list[Work]:
    compiled = torch.compile(rope_store_plain, dynamic=False)
    works: list[Work] = []
    for arguments in sets:
        kv, plan = arguments["kv"], arguments["plan"]
        pages, places = plan.slots // PAGE_SIZE, plan.slots % PAGE_SIZE
        works.append(
            partial(compiled, arguments["qkv"], plan.cos_sin, kv.keys, kv.values, pages, places, arguments["num_heads"])
        )
    return works


def rope_store_plain(
    qkv: Tensor, cos_sin: Tensor, keys: Tensor, values: Tensor, pages: Tensor, places: Tensor, num_heads: int
) -> Tensor:
    """Rotation and storing as one would write it for PyTorch's compiler: unquantized, whole heads, every slot used."""
    num_kv_heads, head_dim = keys.shape[1], keys.shape[3]
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, head_dim)
    turning = heads[:, : num_heads + num_kv_heads].float()
    cos, sin = cos_sin.unsqueeze(1).chunk(2, dim=2)
    first, second = turning.chunk(2, dim=2)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=2).to(qkv.dtype)
    keys.transpose(1, 2)[pages, places] = turned[:, num_heads:]
    values.transpose(1, 2)[pages, places] = heads[:, num_heads + num_kv_heads :]
    return turned[:, :num_heads].contiguous()


def _product_peers(arguments: Arguments) -> dict[str, Peer]:
    peers: dict[str, Peer] = {"cuBLAS": _each(_cublas)}
    stored = getattr(arguments["weight"], "stored", None)
    # Both take rows by the sixteen, rounded before.
    if stored is not None and arguments["x"].shape[0] > 16:
        is_int8 = stored.dtype == torch.int8
        peers["_int_mm" if is_int8 else "_scaled_mm"] = _each(_int_mm if is_int8 else _scaled_mm)
    if (stored is None or stored.dtype == torch.int8) and find_spec("gemlite"):
        peers["gemlite"] = _each(_gemlite_w4 if stored is None else _gemlite_w8)
    return peers


def _num_outputs(arguments: Arguments) -> int:
    weight = arguments["weight"]
    stored: Tensor = weight.stored if hasattr(weight, "stored") else weight.words
    return stored.shape[0]


def _cublas(arguments: Arguments) -> Work:
    x, bias = arguments["x"], arguments["bias"]
    weight = torch.randn(_num_outputs(arguments), x.shape[1], dtype=x.dtype, device=x.device)
    return partial(functional.linear, x, weight, bias)


def _scaled_mm(arguments: Arguments) -> Work:
    """The product alone: rows are rounded before."""
    x, weight = arguments["x"], arguments["weight"]
    scales = x.new_full((x.shape[0], 1), 0.01, dtype=torch.float32)
    rows, columns = x.to(weight.stored.dtype), weight.stored.T
    multiply: Any = torch._scaled_mm  # noqa: SLF001 - the one door to cuBLAS in float8
    return lambda: multiply(
        rows, columns, scale_a=scales, scale_b=weight.scales.unsqueeze(0), out_dtype=x.dtype, use_fast_accum=True
    )


def _int_mm(arguments: Arguments) -> Work:
    """The product alone: rows are rounded before, and its int32 sums are left as they are."""
    x, weight = arguments["x"], arguments["weight"]
    rows, columns = (x * 40).clamp(-127, 127).to(torch.int8), weight.stored.T
    multiply: Any = torch._int_mm  # noqa: SLF001 - the one door to cuBLAS in int8
    return lambda: multiply(rows, columns)


def _gemlite_w8(arguments: Arguments) -> Work:
    x = arguments["x"]
    weight = torch.randn(_num_outputs(arguments), x.shape[1], dtype=x.dtype, device=x.device)
    linear: Any = import_module("gemlite.helper").A16W8(device=str(x.device)).from_weights(weight)
    return partial(linear, x)


def _gemlite_w4(arguments: Arguments) -> Work:
    x, size = arguments["x"], arguments["weight"].group_size
    shape = (_num_outputs(arguments), x.shape[1])
    codes = torch.randint(0, 16, shape, dtype=torch.uint8, device=x.device)
    scales = torch.rand(codes.numel() // size, 1, dtype=x.dtype, device=x.device)
    maker: Any = import_module("gemlite.helper").A16Wn(device=str(x.device))
    linear = maker.from_weights(codes, scales, torch.full_like(scales, 8.0), 4, size)
    return partial(linear, x)


def _sample_peers(arguments: Arguments) -> dict[str, Peer]:
    del arguments
    return {"one read": _each(lambda given: partial(torch.amax, given["logits"], 1))}
