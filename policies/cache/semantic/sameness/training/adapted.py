"""An encoder adapted for answers while a head is trained on its tokens: low-rank additions to all linear layers of a
BERT (Hu et al., LoRA, ICLR 2022), trained end to end with the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from policies.cache.semantic.sameness.alignment import EncodedPart, TokenVocabulary, join, meet
from policies.cache.semantic.sameness.training.batches import WordedPair, in_batches
from policies.cache.semantic.sameness.training.fit import Scale, loss_of, words_of
from policies.cache.semantic.sameness.training.network import Network
from policies.cache.semantic.sameness.words import FEATURES

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

    def rows(self, ids: Sequence[list[int]]) -> list[Tensor]:
        """Of each text [tokens + 1, dimension] of length 1: those between its marks, and their mean with them."""
        longest = max(map(len, ids))
        table = torch.zeros(len(ids), longest, dtype=torch.long)
        mask = torch.zeros(len(ids), longest, dtype=torch.long)
        for at, row in enumerate(ids):
            table[at, : len(row)] = torch.tensor(row)
            mask[at, : len(row)] = 1
        found = self.bert(input_ids=table, attention_mask=mask).last_hidden_state
        told = []
        for at, row in enumerate(ids):
            own = found[at, : len(row)]
            told.append(torch.cat((own[1:-1], own.mean(dim=0, keepdim=True))))
        return list(nn.functional.normalize(torch.cat(told), dim=-1).split([len(row) - 1 for row in ids]))

    def embed_parts(self, texts: Sequence[str]) -> list[EncodedPart]:
        """As `TransformerModel.embed_parts`."""
        ids = self.tokenize(texts)
        with torch.inference_mode():
            rows = self.rows(ids)
        return [EncodedPart(np.array(own[1:-1], np.int32), row.numpy()) for own, row in zip(ids, rows, strict=True)]


def batch_inputs(
    encoder: AdaptedBert,
    pairs: Sequence[WordedPair],
    known: dict[str, list[int]],
    words: NDArray[np.float32],
    vocabulary: TokenVocabulary,
) -> tuple[Tensor, ...]:
    """What `Network.forward` takes, with gradients through the vectors."""
    parts = list(dict.fromkeys(part for pair in pairs for side in (pair.left, pair.right) for part in side.texts))
    rows = dict(zip(parts, encoder.rows([known[part] for part in parts]), strict=True))
    encoded = {
        part: EncodedPart(np.array(known[part][1:-1], np.int32), row.detach().numpy()) for part, row in rows.items()
    }
    joined = [tuple(join([encoded[part] for part in side.texts]) for side in (pair.left, pair.right)) for pair in pairs]
    meeting = meet([(one, other) for one, other in joined], vocabulary)
    one, other = (
        nn.utils.rnn.pad_sequence([torch.cat([rows[part] for part in side.texts]) for side in sides], batch_first=True)
        for sides in ([pair.left for pair in pairs], [pair.right for pair in pairs])
    )
    flags, back, bonds, mask, other_mask = (torch.from_numpy(np.ascontiguousarray(array)) for array in meeting)
    bonds = torch.cat(((one @ other.transpose(1, 2))[..., None], bonds[..., 1:]), 3)
    return one, other, flags, back, bonds, mask, other_mask, torch.from_numpy(words)


def fit_tokens(
    encoder: AdaptedBert,
    rounds: Iterable[Sequence[WordedPair]],
    num_rounds: int,
    scale: Scale,
    vocabulary: TokenVocabulary,
    *,
    seed: int,
    note: Callable[[str], None],
) -> Network:
    """Adapt the encoder and fit the head over its tokens, each round on pairs of its own, as many as in the first.

    AdamW with rates that rise for a moment and then fall to nothing.
    """
    torch.manual_seed(seed)
    random = Random(seed)
    network = Network(encoder.bert.config.hidden_size, len(FEATURES))
    groups: list[dict[str, Any]] = [
        {"params": list(network.parameters()), "peak": _RATE, "weight_decay": 1e-2},
        {
            "params": [each for each in encoder.parameters() if each.requires_grad],
            "peak": _ADAPTER_RATE,
            "weight_decay": 1e-2,
        },
    ]
    optimizer = torch.optim.AdamW(groups, lr=_RATE)
    num_steps = step = 0
    for number, pairs in enumerate(rounds, 1):
        words = scale(words_of(pairs))
        known = token_ids(encoder, pairs)
        lengths = [sum(len(known[part]) for side in (pair.left, pair.right) for part in side.texts) for pair in pairs]
        batches = in_batches(lengths, random)
        num_steps = num_steps or len(batches) * num_rounds
        total, seen = 0.0, 0
        for batch in batches:
            step += 1
            left = max(0.0, 1 - step / (num_steps + 1))
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * min(1.0, step / _WARM_STEPS) * left
            chosen = [pairs[at] for at in batch]
            loss = loss_of(network(*batch_inputs(encoder, chosen, known, words[batch], vocabulary)), chosen)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], 1.0)
            optimizer.step()
            total += float(loss.detach()) * len(batch)
            seen += len(batch)
            if step % 100 == 0:
                note(f"round {number} of {num_rounds}, step {step} of {num_steps}: loss {total / seen:.4f}")
                total, seen = 0.0, 0
    return network.eval()


def token_ids(encoder: AdaptedBert, pairs: Sequence[WordedPair]) -> dict[str, list[int]]:
    """Of all parts."""
    parts = sorted({part for pair in pairs for side in (pair.left, pair.right) for part in side.texts})
    return dict(zip(parts, encoder.tokenize(parts), strict=True))
