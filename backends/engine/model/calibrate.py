"""What goes into each linear layer while a model reads a text of the user's: how large it gets, input by input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from backends.engine.errors import ModelError
from backends.engine.kv.memory import KVCache
from backends.engine.model.decoder import load_decoder
from backends.engine.step.flatten import Span, build_batch
from backends.engine.text.tokenizer import Tokenizer
from kernels.dispatch import select_ops
from kernels.paging import PAGE_SIZE

MOST_TOKENS = 2**16
"""Of a text; peaks hardly grow any more after as many."""
TOKENS_AT_ONCE = 1024


def input_peaks_of_text(folder: Path, text: str, *, progress: Callable[[int, int], None]) -> dict[str, Tensor]:
    """`collect_input_peaks` over the beginning of `text`, in sequences of up to TOKENS_AT_ONCE tokens."""
    tokens = Tokenizer(folder).encode(text)[:MOST_TOKENS]
    sequences = [tokens[start : start + TOKENS_AT_ONCE] for start in range(0, len(tokens), TOKENS_AT_ONCE)]
    return collect_input_peaks(folder, sequences, progress=progress)


def collect_input_peaks(
    folder: Path,
    sequences: Sequence[Sequence[int]],
    *,
    device: torch.device | None = None,
    progress: Callable[[int, int], None],
) -> dict[str, Tensor]:
    """The largest absolute input [in], float32, of each linear layer's modules by name, over token `sequences`.

    The folder's model reads them unquantized, each by itself and only as far as its context reaches, on `device` (the
    CPU by default). `progress(done, total)` is called after each. Raises ModelError, also where there is no token.
    """
    if not any(sequences):
        raise ModelError("there are no tokens to calibrate with: name a text that is not empty")
    device = torch.device("cpu") if device is None else device
    peaks: dict[str, Tensor] = {}

    def observe(names: Sequence[str], x: Tensor) -> None:
        if not x.shape[0]:
            return
        found = x.abs().amax(0).float()
        for name in names:
            peaks[name] = torch.maximum(peaks[name], found) if name in peaks else found

    decoder = load_decoder(folder, dtype=None, device=device, ops=select_ops(device.type), observe=observe)
    longest = min(max(len(tokens) for tokens in sequences), decoder.max_positions)
    pages = list(range(-(-longest // PAGE_SIZE)))
    cache = KVCache(decoder.config, len(pages), dtype=decoder.dtype, device=device)
    for done, tokens in enumerate(sequences, start=1):
        known = list(tokens[:longest])
        if known:
            batch = build_batch([Span(known, 0, pages)], range(len(known)), device)
            decoder.logits(decoder.forward(batch, cache.layers))
        progress(done, len(sequences))
    return {name: peak.cpu() for name, peak in peaks.items()}
