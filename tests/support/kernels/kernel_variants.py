"""Operations that note which variants of kernels they would launch on CUDA, while their torch twins do the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kernels.attention.launch import prepare_paged_attention
from kernels.choice.probabilities_kernel import prepare_probabilities
from kernels.choice.reject_kernel import prepare_reject
from kernels.choice.sample_kernel import prepare_sample, prepare_tokens
from kernels.dispatch import Ops, select_ops
from kernels.jit import Launch
from kernels.rows.act_kernel import prepare_gated_activation
from kernels.rows.norm_kernel import prepare_rms_norm
from kernels.rows.rope_store_kernel import prepare_rope_store
from tests.support.kernels.sm90 import Variant

Prepare = Callable[..., tuple[object, list[Launch]]]


def noting_ops(seen: set[str]) -> Ops:
    """The twins; what each kernel would be compiled for is put into `seen`."""
    twins = select_ops("cpu")

    def noting(twin: Callable[..., Any], *prepares: Prepare) -> Any:
        def work(*given: Any, **named: Any) -> Any:
            for prepare in prepares:
                count = 2 if prepare is prepare_probabilities else len(given)
                for launch in prepare(*given[:count], **named)[1]:
                    seen.add(f"{launch.kernel.__name__} {Variant.of(launch)} {launch.config}")
            return twin(*given, **named)

        return work

    return replace(
        twins,
        rms_norm=noting(twins.rms_norm, prepare_rms_norm),
        rope_store=noting(twins.rope_store, prepare_rope_store),
        paged_attention=noting(twins.paged_attention, prepare_paged_attention),
        gated_activation=noting(twins.gated_activation, prepare_gated_activation),
        sample=noting(twins.sample, prepare_tokens),
        sample_with_logprobs=noting(twins.sample_with_logprobs, prepare_sample),
        sample_with_probs=noting(twins.sample_with_probs, prepare_tokens, prepare_probabilities),
        probabilities=noting(twins.probabilities, prepare_probabilities),
        reject=noting(twins.reject, prepare_reject),
    )
