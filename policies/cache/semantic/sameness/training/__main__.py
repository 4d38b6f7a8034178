"""Adapts the encoder for answers, trains the heads, and writes the weights, their card and how well they do on pairs
that they have not seen.

    python -m policies.cache.semantic.sameness.training OUT_DIR [--go-on] [--paraqa FILE] [--families N] [--rounds N]
        [--seed N]

`--go-on`: from the weights that come with the package, at six tenths of the pace; else from nothing.
`--paraqa`: pairs of answers of ParaQA's training part (Kacupaj et al., ESWC 2021, CC BY 4.0), JSON lines of `a`, `b`,
`y`, `bt`, `read`, gzipped; without it the heads see own text alone.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import torch

from policies.cache.semantic.encoder.folder import find_folder
from policies.cache.semantic.encoder.transformer import (
    fingerprint_of,
    load_sentence_transformer,
    vocabulary_of_tokenizer,
)
from policies.cache.semantic.sameness.head import Card, load_weights
from policies.cache.semantic.sameness.training.adapted import AdaptedBert, fit_tokens
from policies.cache.semantic.sameness.training.batches import WordedPair, worded
from policies.cache.semantic.sameness.training.examples import examples, families_of
from policies.cache.semantic.sameness.training.fit import Scale, scale_of, words_of
from policies.cache.semantic.sameness.training.heads import fit_answers
from policies.cache.semantic.sameness.training.network import Network
from policies.cache.semantic.sameness.training.pairs import Family
from policies.cache.semantic.sameness.words import FEATURES

_ANSWERS = 3_750
"""Made-up pairs of each half of those that the head over answers is fitted on."""
_PACE_OF_MORE = 0.6
"""What is known is forgotten at the full one."""


def main() -> None:
    """Reports on standard error how far it has come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--go-on", action="store_true", help="From the weights that come with the package")
    parser.add_argument("--paraqa", type=Path)
    parser.add_argument("--families", type=int, default=3_000, help="Of a round, about ten pairs each")
    parser.add_argument("--rounds", type=int, default=13, help="Each on families of its own")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = find_folder(None)
    model = load_sentence_transformer(folder)
    tokenizer = model.tokenizer
    vocabulary = vocabulary_of_tokenizer(tokenizer)

    def tokenize(texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=model.max_seq_length).input_ids
        return ids

    torch.manual_seed(options.seed)
    encoder = AdaptedBert(model[0].auto_model, tokenize)
    sets = examples(options.paraqa, options.seed, options.families, _ANSWERS)
    families = _worded(sets.sentences)
    network = Network(model.get_embedding_dimension() or 0, len(FEATURES))
    before = load_weights() if options.go_on else None
    if before is None:
        scale = scale_of(words_of([pair for family in families for pair in family]))
    else:
        scale = Scale(before.arrays["part.mean"], before.arrays["part.deviation"])
        encoder.adapt(before.arrays)
        network.load_state_dict({name: torch.from_numpy(before.arrays[name]) for name in network.state_dict()})
    of_paraqa = sets.sentences[options.families :]
    later = (
        _worded([*families_of(options.seed + 10 * number, options.families), *of_paraqa])
        for number in range(1, options.rounds)
    )
    rounds = chain([families], later)
    pace = 1.0 if before is None else _PACE_OF_MORE
    fit_tokens(encoder, network, rounds, options.rounds, scale, vocabulary, seed=options.seed, pace=pace, note=_note)
    heads = fit_answers(encoder, network, sets, scale, vocabulary, seed=options.seed, note=_note)
    arrays = {name: tensor.numpy() for name, tensor in network.state_dict().items()} | encoder.adapters()
    arrays |= heads.arrays | {"part.mean": scale.mean, "part.deviation": scale.deviation}
    options.out.mkdir(parents=True, exist_ok=True)
    exact = ("mean", "deviation")
    np.savez(
        options.out / "heads.npz",
        **{name: array if name.endswith(exact) else array.astype(np.float16) for name, array in arrays.items()},
    )
    card = Card(
        fingerprint=fingerprint_of(folder, model.get_embedding_dimension() or 0),
        sha256=hashlib.sha256((options.out / "heads.npz").read_bytes()).hexdigest(),
        seed=options.seed,
        trained_on=(f"{before.card.trained_on}; then " if before is not None else "")
        + f"{options.rounds} rounds of {options.families} families of sentences and answers of own writing"
        + ("; ParaQA (Kacupaj et al., ESWC 2021, CC BY 4.0), pairs of its answers" if options.paraqa else ""),
        bend=heads.bends["answer"],
        word_bend=heads.bends["words"],
        scores=heads.scores,
    )
    (options.out / "card.json").write_bytes(msgspec.json.format(msgspec.json.encode(card)) + b"\n")
    _note((options.out / "card.json").read_text())


def _worded(families: Sequence[Family]) -> list[list[WordedPair]]:
    return [pairs for family in families if (pairs := worded(family))]


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
