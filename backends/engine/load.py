"""From options to the parts of a running engine: models, caches, pages. Called by the engine's thread, once."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from backends.engine.choosing.grammar import GrammarFactory
from backends.engine.choosing.sampling import Sampler
from backends.engine.errors import ModelError, OutOfMemory, is_out_of_memory
from backends.engine.kv.memory import KVCache, page_bytes, page_dtype
from backends.engine.kv.pages import PagePool, pages_for
from backends.engine.model.config import ModelConfig
from backends.engine.model.decoder import Decoder, load_decoder
from backends.engine.model.shard import Shard, kv_shape
from backends.engine.options import EngineOptions
from backends.engine.speculation.draft_model import DraftModel
from backends.engine.speculation.speculate import Speculator
from backends.engine.step.graphs import DecodeGraphs, TwinsInStep
from backends.engine.step.parallel import Followers
from backends.engine.step.runner import Runner
from backends.engine.step.scheduler import Scheduler
from backends.engine.step.utilization import ComputeCounter, ComputeCounts, Peaks, measure_peaks
from backends.engine.step.warm_up import warm_up_decoder, warm_up_sampler
from backends.engine.text.tokenizer import Tokenizer
from kernels.dispatch import Ops, has_kernels, select_ops
from kernels.fallback import Fallbacks
from kernels.paging import PAGE_SIZE

logger = logging.getLogger(__name__)

_CPU_KV_BYTES = 2**30
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_FREE_SHARE = 0.85
"""Of a GPU's memory that is free once the weights are loaded; the rest is for activations and graphs."""


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is made of. `page_bytes`: of one page in both caches; `max_context`: as far as pages reach.

    `work_clock` reads the seconds that steps take, of the engine's thread. `close` ends what runs beside the engine.
    """

    config: ModelConfig
    decoder: Decoder
    tokenizer: Tokenizer
    grammars: GrammarFactory
    scheduler: Scheduler
    speculator: Speculator
    runner: Runner
    draft: DraftModel | None
    max_context: int
    weight_bytes: int
    page_bytes: int
    compute: ComputeCounts
    peaks: Peaks | None
    fallbacks: Fallbacks
    work_clock: Callable[[], float]
    close: Callable[[], None]


def load_parts(
    options: EngineOptions, now: Callable[[], float], *, select: Callable[..., Ops] = select_ops
) -> EngineParts:
    """Loads the models and makes room for their keys and values. `now` reads a clock in seconds.

    `select` hands out the operations of a device. Raises ModelError, OutOfMemory.
    """
    device = _device(options)
    fallbacks = Fallbacks()
    ops = select(device.type, reference=options.reference_kernels, fallbacks=fallbacks)
    if options.tensor_parallel == 1:
        return _load_parts(options, now, device, None, ops, fallbacks)
    followers = Followers(options, _DTYPES.get(options.dtype), device)
    try:
        return _load_parts(options, now, device, followers, ops, fallbacks)
    except BaseException:
        followers.close()
        raise


def _load_parts(
    options: EngineOptions,
    now: Callable[[], float],
    device: torch.device,
    followers: Followers | None,
    ops: Ops,
    fallbacks: Fallbacks,
) -> EngineParts:
    _check_context(options)
    tokenizer = Tokenizer(options.model)
    decoder = _decoder(options, options.model, device, ops, is_draft=False, followers=followers)
    draft = None
    if options.draft is not None and options.speculate in ("auto", "draft"):
        draft = _decoder(options, options.draft, device, ops, is_draft=True)
    kv_dtypes = {"auto": decoder.dtype, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
    kv_dtype = kv_dtypes[options.kv_dtype]
    if has_kernels(device.type, reference=options.reference_kernels):
        kv_dtype = page_dtype(kv_dtype, torch.cuda.get_device_capability(device), fallbacks)
    draft_page_bytes = 0 if draft is None else page_bytes(draft.config, draft.dtype)
    shape = kv_shape(decoder.config, Shard() if followers is None else followers.shard)
    bytes_of_page = page_bytes(shape, kv_dtype) + draft_page_bytes
    num_pages, max_context = _size(options, decoder.max_positions, bytes_of_page, device)
    tokenizer.limit = max_context
    host_pages = options.host_bytes // bytes_of_page
    make_cache = KVCache if followers is None else followers.cache
    cache = make_cache(shape, num_pages, dtype=kv_dtype, device=device, host_pages=host_pages)
    compute = ComputeCounts()
    grammars = GrammarFactory(tokenizer)
    sampler = Sampler(
        decoder.config.vocab_size,
        device,
        grammars,
        eos_token_ids=decoder.config.eos_token_ids,
        ops=ops,
    )
    work_clock = _work_clock(now) if device.type == "cpu" and followers is None else now
    # Ranks would have to replay their graphs in step, and twins look at numbers.
    has_graphs = device.type == "cuda" and followers is None and not options.reference_kernels
    caches = {decoder: cache}
    draft_model = None
    if draft is not None:
        caches[draft] = KVCache(draft.config, num_pages, dtype=draft.dtype, device=device, host_pages=host_pages)
        draft_model = DraftModel(
            draft,
            caches[draft],
            sampler,
            max_tokens=options.max_batch_tokens,
            vocab_size=decoder.config.vocab_size,
            device=device,
            compute=ComputeCounter(draft.config, compute, weight_bytes=draft.weight_bytes, kv_dtype=draft.dtype),
        )
    graphs = _graphs(options, decoder, cache, pages_for(max_context), fallbacks) if has_graphs else None
    if device.type == "cuda":
        _warm_up(options, caches, sampler, max_context)
    return EngineParts(
        config=decoder.config,
        decoder=decoder,
        tokenizer=tokenizer,
        grammars=grammars,
        scheduler=Scheduler(
            PagePool(num_pages, host_pages=host_pages, fingerprint=_fingerprint(options)),
            max_batch_tokens=options.max_batch_tokens,
            max_sequences=options.max_sequences,
            max_context=max_context,
        ),
        speculator=Speculator(
            options.speculate,
            draft_model,
            most=options.max_draft,
            below=options.speculate_below,
            now=work_clock,
        ),
        runner=Runner(
            decoder,
            cache,
            sampler,
            device=device,
            graphs=graphs,
            compute=ComputeCounter(decoder.config, compute, weight_bytes=decoder.weight_bytes, kv_dtype=kv_dtype),
        ),
        draft=draft_model,
        max_context=max_context,
        weight_bytes=decoder.weight_bytes + (0 if draft is None else draft.weight_bytes),
        page_bytes=bytes_of_page,
        compute=compute,
        peaks=measure_peaks(device, decoder.dtype) if options.measure_peaks else None,
        fallbacks=fallbacks,
        work_clock=work_clock,
        close=_nothing if followers is None else followers.close,
    )


def _nothing() -> None:
    """A model on one device has nothing beside it."""


def _work_clock(now: Callable[[], float]) -> Callable[[], float]:
    """Processor time of the engine's thread, where all work is done there: whatever else keeps the machine busy
    meanwhile says nothing of a step. Where `now` is not the machine's clock, nothing is measured but by it.
    """
    return time.thread_time if now is time.perf_counter else now


def _check_context(options: EngineOptions) -> None:
    longest = ModelConfig.from_folder(options.model).max_positions
    if options.max_context is not None and options.max_context > longest:
        raise ModelError(
            f"max_context is {options.max_context}, and the model in {options.model} was made for {longest} tokens: "
            "leave it out, or take no more than that"
        )


def _device(options: EngineOptions) -> torch.device:
    is_there = torch.cuda.is_available()
    if options.device == "cuda" and not is_there:
        raise ModelError("device is 'cuda', but PyTorch finds no CUDA device; take 'cpu' or 'auto'")
    return torch.device("cuda" if options.device != "cpu" and is_there else "cpu")


def _decoder(
    options: EngineOptions,
    folder: Path,
    device: torch.device,
    ops: Ops,
    *,
    is_draft: bool,
    followers: Followers | None = None,
) -> Decoder:
    try:
        return load_decoder(
            folder,
            dtype=_DTYPES.get(options.dtype),
            device=device,
            ops=ops,
            quantization=None if is_draft else options.quantization,
            adapter=None if is_draft else options.adapter,
            max_positions=options.max_context,
            shard=None if followers is None else followers.shard,
            make=Decoder if followers is None else followers.decoder,
        )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"the weights of {folder} do not fit on {device}; quantize them, or take a smaller model ({error})"
        ) from error


def _size(options: EngineOptions, max_positions: int, bytes_of_page: int, device: torch.device) -> tuple[int, int]:
    """(pages, longest context): as many pages as the memory holds, and no more than all places can use."""
    wanted = options.max_sequences * pages_for(max_positions)
    if options.kv_bytes is not None:
        kv_bytes = options.kv_bytes
    elif device.type == "cuda":
        kv_bytes = int(torch.cuda.mem_get_info(device)[0] * _FREE_SHARE)
    else:
        kv_bytes = _CPU_KV_BYTES
    num_pages = min(kv_bytes // bytes_of_page, wanted)
    needed = 1 if options.max_context is None else pages_for(max_positions)
    if num_pages < needed:
        raise OutOfMemory(
            f"a context of {max_positions} tokens needs {needed * bytes_of_page} bytes of keys and values and there is "
            f"room for {kv_bytes}; lower max_context, or give the cache more memory"
        )
    return num_pages, min(max_positions, num_pages * PAGE_SIZE)


def _fingerprint(options: EngineOptions) -> bytes:
    """Names what the pages of this engine's cache hold: which weights, and in what form."""
    parts = [options.dtype, str(options.quantization), options.kv_dtype]
    for folder in (options.model, options.adapter):
        # A folder may be written anew under its old name; reading gigabytes to know it would take too long.
        files = sorted(folder.iterdir()) if folder is not None else []
        parts.append(str(folder))
        for file in files:
            # A link that leads nowhere may stand for a file that nobody needs.
            found = file.stat() if file.exists() else file.lstat()
            parts += [file.name, str(found.st_size), str(found.st_mtime_ns)]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()


def _warm_up(options: EngineOptions, caches: Mapping[Decoder, KVCache], sampler: Sampler, max_context: int) -> None:
    """Compiles what the target (the first) and its draft need. Without it, requests would wait for the compiler."""
    device = torch.device("cuda")
    began = time.monotonic()
    try:
        with torch.inference_mode():
            for decoder, cache in caches.items():
                warm_up_decoder(
                    decoder,
                    cache,
                    device,
                    max_tokens=options.max_batch_tokens,
                    max_sequences=options.max_sequences,
                    max_context=min(max_context, decoder.max_positions),
                )
            warm_up_sampler(sampler, next(iter(caches)).config.vocab_size, device, has_draft=len(caches) > 1)
    except Exception:  # what fails here fails the requests that need it, and no others
        logger.exception("not every kernel could be compiled beforehand; requests may wait for the compiler")
        return
    logger.info("kernels are compiled, after %.1f s", time.monotonic() - began)


def _graphs(
    options: EngineOptions, decoder: Decoder, cache: KVCache, max_pages: int, fallbacks: Fallbacks
) -> DecodeGraphs | None:
    device = torch.device("cuda")
    most = options.max_sequences
    try:
        return DecodeGraphs(decoder, cache, most=most, max_pages=max_pages, device=device, fallbacks=fallbacks)
    except TwinsInStep:
        logger.warning("decode steps run without CUDA graphs, since some of their work is not done by kernels")
    except RuntimeError:
        logger.exception("decode steps could not be captured as CUDA graphs; they run without")
    return None
