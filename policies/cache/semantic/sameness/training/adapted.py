"""An encoder adapted for answers while a head is trained on its tokens: low-rank additions to all linear layers of a
BERT (Hu et al., LoRA, ICLR 2022), trained end to end with the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from policies.cache.semantic.sameness.alignment import (
    EncodedPart,
    TokenizedAnswer,
    TokenVocabulary,
    join,
    meet,
    padded,
)
from policies.cache.semantic.sameness.parts import AnswerParts
from policies.cache.semantic.sameness.training.batches import WordedPair, in_batches
from policies.cache.semantic.sameness.training.fit import Scale, loss_of, words_of
from policies.cache.semantic.sameness.training.network import Network

_RANK = 16
_RATE = 2e-3
_ADAPTER_RATE = 5e-4
_WARM_STEPS = 200

Tokenize = Callable[[Sequence[str]], list[list[int]]]


class LowRank(nn.Module):
    """A frozen linear layer and what is added to it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight.detach().to(torch.bfloat16)
        self.bias = linear.bias.detach().to(torch.bfloat16)
        self.down = nn.Parameter(torch.randn(_RANK, linear.in_features) / linear.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(linear.out_features, _RANK))

    def forward(self, x: Tensor) -> Tensor:
        """y = (W + U D) x + b."""
        small = x.to(torch.bfloat16)
        added = nn.functional.linear(
            nn.functional.linear(small, self.down.to(torch.bfloat16)), self.up.to(torch.bfloat16)
        )
        return (nn.functional.linear(small, self.weight, self.bias) + added).float()


class AdaptedBert(nn.Module):
    """Tells parts' tokens as an encoder does, and can be trained."""

    def __init__(self, bert: Any, tokenize: Tokenize) -> None:
        super().__init__()
        for parameter in bert.parameters():
            parameter.requires_grad_(False)
        self.bert = bert
        self.tokenize = tokenize
        for layer in bert.encoder.layer:
            attention = layer.attention
            for name in ("query", "key", "value"):
                setattr(attention.self, name, LowRank(getattr(attention.self, name)))
            for holder in (attention.output, layer.intermediate, layer.output):
                holder.dense = LowRank(holder.dense)

    def adapters(self) -> dict[str, NDArray[np.float32]]:
        """What training has added, under its names in the model."""
        return {
            name: tensor.numpy() for name, tensor in self.bert.state_dict().items() if name.endswith(("up", "down"))
        }

    def adapt(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        """By what earlier training has added, as `adapters` tells it."""
        known = {name: torch.from_numpy(array) for name, array in arrays.items() if name.endswith(("up", "down"))}
        self.bert.load_state_dict(known, strict=False)

    def rows(self, ids: Sequence[list[int]]) -> Tensor:
        """[tokens, dimension] of length 1, of all texts in a row: of each those between its marks, and their mean with
        them.
        """
        table = torch.from_numpy(padded([np.array(row) for row in ids]))
        mask = torch.from_numpy(padded([np.ones(len(row), np.int64) for row in ids]))
        found = self.bert(input_ids=table, attention_mask=mask).last_hidden_state
        is_read = mask[..., None].to(found.dtype)
        means = (found * is_read).sum(1) / is_read.sum(1)
        longest = table.shape[1]
        places = [
            np.append(at * longest + np.arange(1, len(row) - 1), len(ids) * longest + at) for at, row in enumerate(ids)
        ]
        # Taken from one table at once: backward through a slice a text takes longer than through the encoder.
        of_all = torch.cat((found.flatten(0, 1), means))[torch.from_numpy(np.concatenate(places))]
        return nn.functional.normalize(of_all, dim=-1)

    def embed_parts(self, texts: Sequence[str]) -> list[EncodedPart]:
        """As `TransformerModel.embed_parts`."""
        ids = self.tokenize(texts)
        with torch.inference_mode():
            return encoded_parts(ids, self.rows(ids))


def encoded_parts(ids: Sequence[list[int]], rows: Tensor) -> list[EncodedPart]:
    """Of `AdaptedBert.rows`."""
    vectors = np.split(rows.detach().numpy(), np.cumsum([len(row) - 1 for row in ids])[:-1])
    return [EncodedPart(np.array(row[1:-1], np.int32), own) for row, own in zip(ids, vectors, strict=True)]


def batch_inputs(
    encoder: AdaptedBert,
    pairs: Sequence[WordedPair],
    known: dict[str, list[int]],
    words: NDArray[np.float32],
    vocabulary: TokenVocabulary,
) -> tuple[Tensor, ...]:
    """What `Network.forward` takes, with gradients through the vectors."""
    parts = list(dict.fromkeys(part for pair in pairs for side in (pair.left, pair.right) for part in side.texts))
    ids = [known[part] for part in parts]
    rows = encoder.rows(ids)
    encoded = dict(zip(parts, encoded_parts(ids, rows), strict=True))
    ends = np.cumsum([len(row) - 1 for row in ids])
    places = {part: np.arange(end - len(row) + 1, end) for part, row, end in zip(parts, ids, ends, strict=True)}
    joined: dict[tuple[str, ...], TokenizedAnswer] = {}

    def answer(side: AnswerParts) -> TokenizedAnswer:
        texts = tuple(side.texts)
        if texts not in joined:
            joined[texts] = join([encoded[part] for part in texts])
        return joined[texts]

    meeting = meet([(answer(pair.left), answer(pair.right)) for pair in pairs], vocabulary)
    with_nothing = torch.cat((rows, rows.new_zeros(1, rows.shape[1])))

    def vectors(sides: Sequence[AnswerParts]) -> Tensor:
        rows_of = [np.concatenate([places[part] for part in side.texts]) for side in sides]
        return with_nothing[torch.from_numpy(padded(rows_of, fill=len(rows)))]

    one, other = vectors([pair.left for pair in pairs]), vectors([pair.right for pair in pairs])
    flags, back, bonds, mask, other_mask = (torch.from_numpy(np.ascontiguousarray(array)) for array in meeting)
    bonds = torch.cat(((one @ other.transpose(1, 2))[..., None], bonds[..., 1:]), 3)
    return one, other, flags, back, bonds, mask, other_mask, torch.from_numpy(words)


def fit_tokens(
    encoder: AdaptedBert,
    network: Network,
    rounds: Iterable[Sequence[Sequence[WordedPair]]],
    num_rounds: int,
    scale: Scale,
    vocabulary: TokenVocabulary,
    *,
    seed: int,
    pace: float,
    note: Callable[[str], None],
) -> None:
    """Adapt the encoder and fit the head over its tokens, each round on families of its own, as many as in the first.

    AdamW with rates that rise for a moment and then fall to nothing; `pace`: times the usual ones.
    """
    torch.manual_seed(seed)
    random = Random(seed)
    groups: list[dict[str, Any]] = [
        {"params": list(network.parameters()), "peak": pace * _RATE, "weight_decay": 1e-2},
        {
            "params": [each for each in encoder.parameters() if each.requires_grad],
            "peak": pace * _ADAPTER_RATE,
            "weight_decay": 1e-2,
        },
    ]
    optimizer = torch.optim.AdamW(groups, lr=_RATE)
    num_steps = step = 0
    for number, families in enumerate(rounds, 1):
        known = token_ids(encoder, families)
        lengths = [max(_num_tokens(pair, known) for pair in family) for family in families]
        batches = in_batches(lengths, [len(family) for family in families], random)
        num_steps = num_steps or len(batches) * num_rounds
        total, seen = 0.0, 0
        for batch in batches:
            step += 1
            left = max(0.0, 1 - step / (num_steps + 1))
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * min(1.0, step / _WARM_STEPS) * left
            chosen = [pair for at in batch for pair in families[at]]
            words = scale(words_of(chosen))
            loss = loss_of(network(*batch_inputs(encoder, chosen, known, words, vocabulary)), chosen)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], 1.0)
            optimizer.step()
            total += float(loss.detach()) * len(batch)
            seen += len(batch)
            if step % 100 == 0:
                note(f"round {number} of {num_rounds}, step {step} of {num_steps}: loss {total / seen:.4f}")
                total, seen = 0.0, 0
    network.eval()


def token_ids(encoder: AdaptedBert, families: Sequence[Sequence[WordedPair]]) -> dict[str, list[int]]:
    """Of all parts."""
    sides = (side for family in families for pair in family for side in (pair.left, pair.right))
    parts = sorted({part for side in sides for part in side.texts})
    return dict(zip(parts, encoder.tokenize(parts), strict=True))


def _num_tokens(pair: WordedPair, known: dict[str, list[int]]) -> int:
    return sum(len(known[part]) for side in (pair.left, pair.right) for part in side.texts)
