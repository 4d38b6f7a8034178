"""Adapts the encoder for answers, trains the heads, and writes the weights, their card and how well they do on pairs
that they have not seen.

    python -m policies.cache.semantic.sameness.training OUT_DIR [--paraqa FILE] [--sentences N] [--rounds N] [--seed N]

`--paraqa`: pairs of answers of ParaQA's training part (Kacupaj et al., ESWC 2021, CC BY 4.0), JSON lines of `a`, `b`,
`y`, `bt`, `read`, gzipped; without it the heads see made-up text alone.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from policies.cache.semantic.encoder.folder import find_folder
from policies.cache.semantic.encoder.transformer import (
    fingerprint_of,
    load_sentence_transformer,
    vocabulary_of_tokenizer,
)
from policies.cache.semantic.sameness.alignment import EncodedPart
from policies.cache.semantic.sameness.head import Card
from policies.cache.semantic.sameness.parts import texts_of
from policies.cache.semantic.sameness.training.adapted import AdaptedBert, fit_tokens
from policies.cache.semantic.sameness.training.answers import features_of
from policies.cache.semantic.sameness.training.batches import WordedPair, encode_parts, worded
from policies.cache.semantic.sameness.training.examples import AnswerPair, examples
from policies.cache.semantic.sameness.training.fit import (
    bend_of,
    fit_layers,
    fit_matters,
    layers_log_odds,
    scale_of,
    token_log_odds,
    words_of,
)
from policies.cache.semantic.sameness.training.generator import Generator
from policies.cache.semantic.sameness.training.scores import scores_of
from policies.cache.semantic.sameness.words import word_features

_LAYER_EPOCHS = 40


def main() -> None:
    """Reports on standard error how far it has come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--paraqa", type=Path)
    parser.add_argument("--sentences", type=int, default=60_000, help="Made-up pairs of a round")
    parser.add_argument("--rounds", type=int, default=5, help="Each on pairs of its own")
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
    sets = examples(options.paraqa, options.seed, options.sentences)
    sentences, *answers = (worded(pairs) for pairs in sets)
    _note(f"{len(sentences)} pairs of sentences; of answers {', '.join(str(len(one)) for one in answers)}")
    part_scale = scale_of(words_of(sentences))
    later = (
        worded(examples(options.paraqa, options.seed + 10 * number, options.sentences).sentences)
        for number in range(1, options.rounds)
    )
    network = fit_tokens(
        encoder, chain([sentences], later), options.rounds, part_scale, vocabulary, seed=options.seed, note=_note
    )

    says_nothing = [part for line in Generator(Random(0), frozenset()).says_nothing() for part in texts_of(line)]
    some = sets.sentences[: options.sentences // 6]
    encoded = encode_parts([some, *sets[1:]], says_nothing, encoder.embed_parts, _note)
    matters = fit_matters(*_parts(some, says_nothing, encoded))

    def rows_of(pairs: Sequence[WordedPair]) -> NDArray[np.float32]:
        return features_of(
            pairs,
            encoded,
            vocabulary,
            lambda pairs: token_log_odds(network, pairs, part_scale),
            lambda vectors: 1 / (1 + np.exp(-(vectors.astype(np.float32) @ matters[0][0] + matters[1]))),
        )

    rows = [rows_of(one) for one in answers]
    rows_of_other_matters = rows_of(_of_other_matters(answers[1]))
    arrays = {name: tensor.numpy() for name, tensor in network.state_dict().items()} | encoder.adapters()
    arrays |= {"matters.weight": matters[0], "matters.bias": matters[1]}
    arrays |= {"part.mean": part_scale.mean, "part.deviation": part_scale.deviation}
    bends, told, floors = {}, {}, {}
    is_same = [np.array([pair.example.is_same for pair in one]) for one in answers]
    for name, seen in (("answer", rows), ("words", [words_of(one) for one in answers])):
        scale = scale_of(seen[0])
        layers = fit_layers(seen[0], answers[0], scale, epochs=_LAYER_EPOCHS, seed=options.seed)
        arrays |= {f"{name}.mean": scale.mean, f"{name}.deviation": scale.deviation}
        for number, at in enumerate(("0", "3")):
            for kind in ("weight", "bias"):
                arrays[f"{name}.{number}.{kind}"] = layers.state_dict()[f"{at}.{kind}"].numpy()
        raw = [layers_log_odds(layers, seen[number], scale) for number in (1, 2)]
        odds, same = raw[0], is_same[1]
        if name == "answer":
            # A cache compares as many that are of another matter as differ in one fact.
            others = layers_log_odds(layers, rows_of_other_matters, scale)
            odds, same = np.concatenate((odds, others)), np.concatenate((same, np.zeros(len(others), bool)))
        slope, intercept = bends[name] = bend_of(odds, same)
        bent = [slope * each + intercept for each in raw]
        told[name] = bent[1]
        floors[name] = min(float(each[same].min()) for each, same in zip(bent, is_same[1:], strict=True))
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
        trained_on=f"{options.rounds} rounds of {options.sentences} made-up pairs of sentences of own writing"
        + ("; ParaQA (Kacupaj et al., ESWC 2021, CC BY 4.0), pairs of its answers" if options.paraqa else ""),
        bend=bends["answer"],
        word_bend=bends["words"],
        word_floor=floors["words"],
        scores={name: scores_of(odds, is_same[2]) for name, odds in told.items()},
    )
    (options.out / "card.json").write_bytes(msgspec.json.format(msgspec.json.encode(card)) + b"\n")
    _note((options.out / "card.json").read_text())


def _of_other_matters(pairs: Sequence[WordedPair]) -> list[WordedPair]:
    """Those that differ, their right sides passed on among them."""
    differing = [pair for pair in pairs if not pair.example.is_same]
    rights = [pair.right for pair in differing]
    Random(5).shuffle(rights)
    return [
        WordedPair(pair.left, right, word_features(pair.left.texts, right.texts), pair.example)
        for pair, right in zip(differing, rights, strict=True)
    ]


def _parts(
    pairs: Sequence[AnswerPair], says_nothing: list[str], encoded: dict[str, EncodedPart]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """[parts, dimension] and [parts]: each part's vector, and whether it says anything of the matter."""
    says = {part for pair in pairs for side in (pair.left, pair.right) for part in texts_of(side)}
    parts = [(part, True) for part in sorted(says - set(says_nothing))] + [(part, False) for part in says_nothing]
    vectors = np.stack([encoded[part].vectors[-1] for part, _ in parts]).astype(np.float32)
    return vectors, np.array([matters for _, matters in parts])


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
