"""Drafts verified so that the answer keeps the target's distribution: rejection sampling of Leviathan et al., "Fast
inference from transformers via speculative decoding", 2023, section 2.3 and appendix A.1, written from the paper.
"""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

from kernels.choice.random import ACCEPT_STREAM, TARGET_STREAM, philox_reference, uniforms_reference
from kernels.choice.sample import SampleRows, draw_reference


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
    device = probs.device
    # Which rows are looked at is worked out on the host, where a number costs a tenth of a torch call.
    starts = row_starts.cpu().numpy()
    last_rows = starts[1:] - 1
    goes_on = numpy.ones(len(probs), dtype=numpy.bool_)
    goes_on[last_rows] = False
    draft_rows = numpy.flatnonzero(goes_on)
    index = torch.from_numpy(draft_rows).to(device)
    counters = torch.zeros((1, 1), dtype=torch.int64, device=device)
    words = philox_reference(rows.seeds[index], rows.positions[index], ACCEPT_STREAM, counters)
    uniforms = uniforms_reference(words[:, 0, 0])
    is_accepted = uniforms * draft_probs.gather(1, drafts.unsqueeze(1)).squeeze(1) < probs[index, drafts]
    goes_on[draft_rows] = is_accepted.cpu().numpy()
    # The first row of each sequence whose draft is not accepted, or that has none.
    ends = numpy.flatnonzero(~goes_on)
    final = ends[numpy.searchsorted(ends, starts[:-1])]
    index = torch.from_numpy(final).to(device)
    weights = wanted = probs[index]
    if len(drafts):
        # Every sequence before has one row more than drafts.
        rejected = numpy.minimum(final - numpy.arange(len(final)), len(drafts) - 1)
        is_rejected = torch.from_numpy(final < last_rows).to(device).unsqueeze(1)
        weights = (wanted - draft_probs[torch.from_numpy(rejected).to(device)] * is_rejected).clamp_(min=0.0)
        # Rounding can leave nothing where p and q are equal.
        weights = torch.where(weights.any(dim=1, keepdim=True), weights, wanted)
    tokens = draw_reference(
        weights, rows.seeds[index], rows.positions[index], TARGET_STREAM, is_sparse=rows.is_filtered
    )
    return torch.from_numpy(final - starts[:-1]).to(device), tokens
