"""Drafts verified so that the answer keeps the target's distribution: rejection sampling of Leviathan et al., "Fast
inference from transformers via speculative decoding", 2023, section 2.3 and appendix A.1, written from the paper.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.random import ACCEPT_STREAM, TARGET_STREAM, philox_reference, uniforms_reference
from kernels.sample import SampleRows, draw_reference


def reject_reference(
    probs: Tensor, draft_probs: Tensor, drafts: Tensor, row_starts: Tensor, rows: SampleRows
) -> tuple[Tensor, Tensor]:
    """How many drafts of each sequence are accepted, and the token that follows them: two [sequences] int64.

    Sequence b has the rows row_starts[b]..row_starts[b+1], one for each of its drafts and one behind them.

        probs        [rows, vocab] float32, what the target would draw from
        draft_probs  [draft tokens, vocab] float32, what each draft was drawn from
        drafts       [draft tokens] int64, in the order of the rows
        row_starts   [sequences + 1] int64

    A draft x is accepted with probability min(1, p(x) / q(x)); behind the first that is not, a token is drawn in
    proportion to max(p - q, 0), behind the last of all from p. Of `rows`, the seeds and positions are used.
    """
    last_rows = row_starts[1:] - 1
    is_draft = torch.ones(len(probs), dtype=torch.bool, device=probs.device)
    is_draft[last_rows] = False
    draft_rows = is_draft.nonzero().squeeze(1)
    counters = torch.zeros((1, 1), dtype=torch.int64, device=probs.device)
    words = philox_reference(rows.seeds[draft_rows], rows.positions[draft_rows], ACCEPT_STREAM, counters)
    uniforms = uniforms_reference(words[:, 0, 0])
    target_probs = probs[draft_rows, drafts]
    is_accepted = uniforms * draft_probs.gather(1, drafts.unsqueeze(1)).squeeze(1) < target_probs
    is_draft[draft_rows] = is_accepted
    # The first row of each sequence whose draft is not accepted, or that has none.
    ends = is_draft.logical_not_().nonzero().squeeze(1)
    final = ends[torch.searchsorted(ends, row_starts[:-1])]
    # Every sequence before has one row more than drafts.
    draft_index = (final - torch.arange(len(final), device=final.device)).clamp_(max=len(drafts) - 1)
    proposed = draft_probs[draft_index] * (final < last_rows).unsqueeze(1)
    weights = (probs[final] - proposed).clamp_(min=0.0)
    # Rounding can leave nothing where p and q are equal.
    weights = torch.where(weights.any(dim=1, keepdim=True), weights, probs[final])
    tokens = draw_reference(
        weights, rows.seeds[final], rows.positions[final], TARGET_STREAM, is_sparse=rows.is_filtered
    )
    return final - row_starts[:-1], tokens
