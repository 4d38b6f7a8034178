"""Training the encoder: what a batch shows the head is what its pairs show alone, and can be learned from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from policies.cache.semantic.sameness.alignment import TokenVocabulary
from policies.cache.semantic.sameness.training.pairs import family_of
from policies.cache.semantic.sameness.words import FEATURES

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("_one_thread")

WORDS = TokenVocabulary(np.arange(64) % 7 == 0, np.linspace(0, 1, 64, dtype=np.float32), 3)
MEANINGS = [["You may go. Ask us first.", "Go, once you have asked."], ["You may not go."], ["You may stay, ask us."]]


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """So small products wait for each other's threads for longer than they take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tokenize(texts: Sequence[str]) -> list[list[int]]:
    """A token a word, between two marks."""
    return [[1, *(4 + sum(word.encode()) % 60 for word in text.split()), 2] for text in texts]


def encoder() -> Any:
    """A small one, adapted at random."""
    from policies.cache.semantic.sameness.training.adapted import AdaptedBert

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=64, hidden_dropout_prob=0, attention_probs_dropout_prob=0, **sizes)
    adapted = AdaptedBert(transformers.BertModel(config, add_pooling_layer=False).eval(), tokenize)
    for name, parameter in adapted.named_parameters():
        if name.endswith("up"):
            torch.nn.init.normal_(parameter, std=0.1)
    return adapted


def test_batch_is_what_its_pairs_are_alone() -> None:
    """Texts that several pairs share are read once; padding is nothing."""
    from policies.cache.semantic.sameness.training.adapted import batch_inputs, token_ids
    from policies.cache.semantic.sameness.training.batches import encode_parts, read, tensors, worded

    adapted, family = encoder(), family_of(MEANINGS, "made")
    pairs = worded(family)
    words = np.stack([pair.words for pair in pairs])
    made = batch_inputs(adapted, pairs, token_ids(adapted, [pairs]), words, WORDS)
    encoded = encode_parts([family], [], adapted.embed_parts, lambda _: None)
    alone = tensors([read(pair, encoded, WORDS) for pair in pairs], words)

    mask, other_mask = made[5], made[6]
    there = (mask, other_mask, mask, other_mask, mask[:, :, None] * other_mask[:, None, :])
    for one, other, is_there in zip(made[:5], alone[:5], there, strict=True):
        shown = is_there[..., None]
        torch.testing.assert_close(one.detach() * shown, other * shown, atol=5e-3, rtol=5e-3)
    for one, other in zip(made[5:], alone[5:], strict=True):
        torch.testing.assert_close(one, other)


def test_additions_are_learned_and_kept() -> None:
    """A few steps on one family tell its pairs apart; another encoder with the same additions reads as this one."""
    from policies.cache.semantic.sameness.training.adapted import batch_inputs, fit_tokens, token_ids
    from policies.cache.semantic.sameness.training.batches import worded
    from policies.cache.semantic.sameness.training.fit import loss_of, scale_of, words_of
    from policies.cache.semantic.sameness.training.network import Network

    adapted, pairs = encoder(), worded(family_of(MEANINGS, "made"))
    network = Network(16, len(FEATURES), dropout=0.0)
    scale = scale_of(words_of(pairs))

    def loss() -> float:
        inputs = batch_inputs(adapted, pairs, token_ids(adapted, [pairs]), scale(words_of(pairs)), WORDS)
        return float(loss_of(network(*inputs), pairs).detach())

    before = loss()
    fit_tokens(adapted, network, [[pairs]] * 150, 150, scale, WORDS, seed=1, pace=5.0, note=lambda _: None)
    assert loss() < before / 2

    other = encoder()
    other.adapt(adapted.adapters())
    texts = ["You may go.", "Ask."]
    for one, same in zip(adapted.embed_parts(texts), other.embed_parts(texts), strict=True):
        np.testing.assert_array_equal(one.vectors, same.vectors)


def test_batches_hold_every_family_once_and_are_of_like_length() -> None:
    """However many pairs a family has."""
    from policies.cache.semantic.sameness.training.batches import in_batches

    random = Random(3)
    lengths = [random.randint(4, 200) for _ in range(500)]
    counts = [random.randint(1, 30) for _ in lengths]
    batches = in_batches(lengths, counts, random)

    assert sorted(at for batch in batches for at in batch) == list(range(500))
    for batch in batches:
        longest, num_pairs = max(lengths[at] for at in batch), sum(counts[at] for at in batch)
        assert len(batch) == 1 or (num_pairs <= 240 and longest * num_pairs <= 8_000)
