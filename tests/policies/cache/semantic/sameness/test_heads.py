"""The heads: what is trained is what is computed, in both orders alike, and probabilities that hold on unseen text."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random

import numpy as np
import pytest

from policies.cache.semantic.sameness import head as head_module
from policies.cache.semantic.sameness.alignment import EncodedPart, Meeting, TokenVocabulary, join, meet
from policies.cache.semantic.sameness.head import Card, HeadWeights, ReadPart, TokenHead, WordHead, load_weights
from policies.cache.semantic.sameness.parts import parts_of
from policies.cache.semantic.sameness.training.examples import TEST_KINDS, own
from policies.cache.semantic.sameness.training.facts.kinds import all_kinds
from policies.cache.semantic.sameness.training.generator import Generator
from policies.cache.semantic.sameness.training.pairs import AnswerPair
from policies.cache.semantic.sameness.words import FEATURES, word_features

DIMENSION = 8
WORDS = TokenVocabulary(np.arange(40) % 7 == 0, np.linspace(0, 1, 40, dtype=np.float32), 3)


def parts(random: np.random.Generator, count: int) -> list[EncodedPart]:
    """Of random tokens."""
    made = []
    for _ in range(count):
        ids = random.integers(0, 40, random.integers(1, 9)).astype(np.int32)
        vectors = random.standard_normal((len(ids) + 1, DIMENSION), np.float32)
        made.append(EncodedPart(ids, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)))
    return made


def test_head_computes_what_was_trained_and_the_same_in_both_orders() -> None:
    """torch in training, numpy in the gateway; padding changes nothing."""
    torch = pytest.importorskip("torch")
    from policies.cache.semantic.sameness.training.batches import ReadPair, tensors
    from policies.cache.semantic.sameness.training.network import Network

    torch.manual_seed(0)
    network = Network(DIMENSION, len(FEATURES)).eval()
    for parameter in network.parameters():
        # What begins as nothing or as one would hide what is not computed.
        torch.nn.init.normal_(parameter, std=0.1)
    random = np.random.default_rng(0)
    arrays = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    arrays |= {"part.mean": np.zeros(len(FEATURES), np.float32), "part.deviation": np.ones(len(FEATURES), np.float32)}
    card = Card("made", "", 0, "nothing", (1.0, 0.0), (1.0, 0.0), {})
    head = TokenHead(HeadWeights(arrays, card))
    samples, read_pairs = [], []
    for sizes in ((1, 1), (3, 5), (6, 2)):
        made = [parts(random, size) for size in sizes]
        one, other = (join(each) for each in made)
        read, other_read = (ReadPart(joined, *head.read_tokens(joined.vectors)) for joined in (one, other))
        read_pairs.append((read, other_read))
        alone = Meeting(*(of[0] for of in meet([(one, other)], WORDS)))
        own_words = random.standard_normal(len(FEATURES)).astype(np.float32)
        samples.append(ReadPair(one, other, alone, own_words, AnswerPair("", "", True, 1.0, "")))
    turned = [(other, one) for one, other in read_pairs]
    words = np.stack([sample.words for sample in samples])
    told, back = (
        head.told(pairs, meet([(one.joined, other.joined) for one, other in pairs], WORDS), words)
        for pairs in (read_pairs, turned)
    )
    with torch.inference_mode():
        trained = network(*tensors(samples, words)).numpy()

    assert told == pytest.approx(trained, rel=1e-4, abs=1e-4)
    assert back == pytest.approx(told, rel=1e-4, abs=1e-4)


def test_weights_are_those_of_their_card() -> None:
    """A file that was changed or mixed up is no head."""
    card = load_weights().card
    folder = Path(head_module.__file__).parent / "weights"
    assert hashlib.sha256((folder / "heads.npz").read_bytes()).hexdigest() == card.sha256
    assert (folder / "heads.npz").stat().st_size < 2 * 1024**2


def test_word_features_do_not_depend_on_the_order_and_are_finite() -> None:
    """Whatever made-up answers say."""
    generator = Generator(Random(5), all_kinds())
    for _ in range(150):
        pair = generator.pair()
        left, right = parts_of(pair.left), parts_of(pair.right)
        assert left is not None
        assert right is not None
        features = word_features(left.texts, right.texts)
        assert features.shape == (len(FEATURES),)
        assert np.isfinite(features).all()
        np.testing.assert_allclose(features, word_features(right.texts, left.texts), atol=1e-6)


def test_word_features_of_equal_parts_do_not_depend_on_where_they_stand() -> None:
    """What moves is no difference of words; what stands beside it still is."""
    first, second, third = "Version 3 drops Python 3.8.", "Old plug-ins keep working.", "It costs 5 euros."
    told = word_features([first, second], [second, first])
    assert told[FEATURES.index("equal")] == 1
    assert told[FEATURES.index("same_words_elsewhere")] == 0
    assert word_features([first, second], [third, first])[FEATURES.index("equal")] == 0


@pytest.mark.parametrize(
    ("left", "right", "is_turned"),
    [
        ("You may do it without us.", "You may not do it without us.", True),
        ("You need to ask us.", "You do not need to ask us.", True),
        ("Only we can do it.", "We can do it.", True),
        ("Nobody can do it.", "It is impossible to do it.", False),
        ("You can do it.", "It can be done.", False),
    ],
)
def test_word_features_tell_words_that_turn_a_sentence_over(left: str, right: str, is_turned: bool) -> None:
    """An odd number more of them in one."""
    assert bool(word_features([left], [right])[FEATURES.index("turned_over")]) is is_turned


def test_word_head_says_probabilities_that_hold_on_kinds_of_facts_it_has_never_seen() -> None:
    """Where it is sure, four in five and more are so; over all it is as often right as it says."""
    words = WordHead(load_weights())
    examples = own(77, 800, TEST_KINDS)
    told, truth = [], []
    for example in examples:
        left, right = parts_of(example.left), parts_of(example.right)
        assert left is not None
        assert right is not None
        told.append(1 / (1 + np.exp(-words.log_odds(word_features(left.texts, right.texts)))))
        truth.append(example.is_same)
    p, y = np.array(told), np.array(truth)

    assert y[p > 0.8].mean() > 0.8
    assert y[p < 0.2].mean() < 0.2
    assert abs(p.mean() - y.mean()) < 0.1


def test_generator_is_told_apart_by_its_seed_alone_and_makes_as_many_of_both() -> None:
    """The same seed, the same pairs; about half say the same."""
    one, other = (Generator(Random(3), all_kinds()) for _ in range(2))
    pairs = [one.pair() for _ in range(400)]
    assert pairs == [other.pair() for _ in range(400)]
    assert 0.4 < sum(pair.is_same for pair in pairs) / 400 < 0.6
    assert all(pair.is_same or pair.left != pair.right for pair in pairs)
