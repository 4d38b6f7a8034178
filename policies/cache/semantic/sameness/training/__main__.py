"""Trains both heads and writes their weights, their card and how well they do on pairs that they have not seen.

    python -m policies.cache.semantic.sameness.training OUT_DIR [--paraqa FILE] [--pairs 8000] [--epochs 8] [--seed 1]

`--paraqa`: pairs of answers of ParaQA's training part (Kacupaj et al., ESWC 2021, CC BY 4.0), JSON lines of `a`, `b`,
`y`, `bt`, `read`, gzipped; without it the heads see made-up text alone.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from policies.cache.semantic.encoder.folder import find_folder
from policies.cache.semantic.encoder.transformer import TransformerModel
from policies.cache.semantic.sameness.head import Card
from policies.cache.semantic.sameness.training.batches import ReadPair, encode_parts, read
from policies.cache.semantic.sameness.training.examples import examples
from policies.cache.semantic.sameness.training.fit import (
    Scale,
    bend_of,
    fit_tokens,
    fit_words,
    scale_of,
    token_log_odds,
    word_log_odds,
)
from policies.cache.semantic.sameness.training.network import Network
from policies.cache.semantic.sameness.training.scores import scores_of

_WORD_EPOCHS = 40


def main() -> None:
    """Reports on standard error how far it has come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--paraqa", type=Path)
    parser.add_argument("--pairs", type=int, default=8_000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = TransformerModel(find_folder(None), threads=1)
    sets = examples(options.paraqa, options.seed, options.pairs)
    encoded = encode_parts([each for one in sets for each in one], model.embed_parts, _note)
    training, calibration, test = (read(one, encoded, model.vocabulary()) for one in sets)
    _note(f"{len(training)} pairs to train on, {len(calibration)} to calibrate, {len(test)} to test")
    scale = scale_of(training)
    words = fit_words(training, scale, epochs=_WORD_EPOCHS, seed=options.seed)
    tokens = fit_tokens(training, scale, epochs=options.epochs, seed=options.seed, note=_note)
    is_same, is_same_in_test = (np.array([each.example.is_same for each in one]) for one in (calibration, test))
    both, unseen = (_heads(tokens, words, one, scale) for one in (calibration, test))
    bend, word_bend = bend_of(both, is_same), bend_of(both[:, 1:], is_same)
    arrays = {name: tensor.numpy().astype(np.float16) for name, tensor in tokens.state_dict().items()}
    for number, name in enumerate(("0", "3")):
        for kind in ("weight", "bias"):
            arrays[f"words.{number}.{kind}"] = words.state_dict()[f"{name}.{kind}"].numpy().astype(np.float16)
    arrays |= {"words.mean": scale.mean, "words.deviation": scale.deviation}
    options.out.mkdir(parents=True, exist_ok=True)
    np.savez(options.out / "heads.npz", **arrays)
    told = {"tokens": unseen @ bend[:-1] + bend[-1], "words": unseen[:, 1:] @ word_bend[:-1] + word_bend[-1]}
    card = Card(
        fingerprint=model.fingerprint,
        sha256=hashlib.sha256((options.out / "heads.npz").read_bytes()).hexdigest(),
        seed=options.seed,
        trained_on=f"{options.pairs} made-up pairs of own writing"
        + ("; ParaQA (Kacupaj et al., ESWC 2021, CC BY 4.0), pairs of its answers" if options.paraqa else ""),
        bend=(float(bend[0]), float(bend[1]), float(bend[2])),
        word_bend=(float(word_bend[0]), float(word_bend[1])),
        scores={name: scores_of(odds, is_same_in_test) for name, odds in told.items()},
    )
    (options.out / "card.json").write_bytes(msgspec.json.format(msgspec.json.encode(card)) + b"\n")
    _note((options.out / "card.json").read_text())


def _heads(tokens: Network, words: nn.Sequential, samples: list[ReadPair], scale: Scale) -> NDArray[np.float64]:
    """[pairs, 2]: what each head says of each pair."""
    return np.column_stack((token_log_odds(tokens, samples, scale), word_log_odds(words, samples, scale)))


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
