"""The head as a torch module, for training. In a gateway `TokenHead` computes the same."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from policies.cache.semantic.sameness.alignment import FLAGS

_STANCE = 32


class Network(nn.Module):
    """Decomposable attention (Parikh et al., EMNLP 2016, section 3) over given vectors of tokens."""

    def __init__(self, dimension: int, num_words: int, width: int = 64, dropout: float = 0.2) -> None:
        """`dimension`: of a token's vector; `num_words`: features of the words."""
        super().__init__()
        self.project = nn.Linear(dimension, width)
        self.attend = nn.Parameter(torch.tensor([1.0, 8.0, 8.0, 2.0]))
        self.compare = nn.Linear(3 * width + len(FLAGS), width)
        self.refine = nn.Linear(width, width)
        self.sense = nn.Linear(dimension, width)
        self.stand = nn.Linear(2 * width, _STANCE)
        self.join = nn.Linear(2 * width + 2 * _STANCE + num_words, width)
        self.tell = nn.Linear(width, 1)
        self.drop = nn.Dropout(dropout)

    def forward(
        self,
        one: Tensor,
        other: Tensor,
        flags: Tensor,
        other_flags: Tensor,
        bonds: Tensor,
        mask: Tensor,
        other_mask: Tensor,
        words: Tensor,
    ) -> Tensor:
        """Log odds [pairs]. `one`, `other`: [pairs, tokens, dimension]; `flags`: [pairs, tokens, FLAGS]; `bonds`
        [pairs, tokens, tokens of other, BONDS], the last of them `APART` where there is no token too; masks [pairs,
        tokens]; `words` [pairs, num_words], standardized.
        """
        left, right = self.project(self.drop(one)), self.project(self.drop(other))
        scores = self.attend[0] * (left @ right.transpose(1, 2)) / left.shape[-1] ** 0.5
        scores = scores + (bonds[..., :3] @ self.attend[1:]) + bonds[..., 3]
        there = torch.nan_to_num(scores.softmax(2)) @ right
        back = torch.nan_to_num(scores.softmax(1)).transpose(1, 2) @ left
        means, most = zip(
            self._pool(left, there, flags, mask), self._pool(right, back, other_flags, other_mask), strict=True
        )
        stance, stance_back = self._stance(one, mask), self._stance(other, other_mask)
        stances = ((stance - stance_back).abs(), stance * stance_back)
        pooled = torch.cat((means[0] + means[1], torch.maximum(*most), *stances, words), 1)
        log_odds: Tensor = self.tell(self.drop(functional.relu(self.join(pooled)))).squeeze(1)
        return log_odds

    def _stance(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Of each sentence alone: whether it says yes or no is told by several words together."""
        seen = functional.relu(self.sense(self.drop(vectors))) * mask[..., None]
        pooled = torch.cat((seen.sum(1) / mask.sum(1, keepdim=True), seen.amax(1)), 1)
        stance: Tensor = functional.relu(self.stand(self.drop(pooled)))
        return stance

    def _pool(self, own: Tensor, partner: Tensor, flags: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        met = torch.cat(((own - partner).abs(), own * partner, own, flags), 2)
        seen = functional.relu(self.refine(self.drop(functional.relu(self.compare(met)))))
        seen = seen * mask[..., None]
        return seen.sum(1) / mask.sum(1, keepdim=True), seen.amax(1)
