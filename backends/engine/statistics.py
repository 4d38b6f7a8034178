"""What an engine counts; complete enough to compute utilisation from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backends.engine.sequence import Slice
from backends.engine.speculation.speculate import SpeculationStatistics
from backends.engine.step.scheduler import SchedulerStatistics
from backends.engine.step.utilization import ComputeCounts, Peaks


@dataclass(slots=True)
class StepCounts:
    """Steps since the start, what they worked on, and their time.

    `num_computed` known tokens and `num_drafts` proposed ones went through the target; `num_prompt` of the known ones
    were prompts. `num_sequences` is summed over steps: over steps
    times places it is the batch fill. `run_s` is time in the models and the sampler, `busy_s` that of whole steps.
    `num_failed` steps had to be run again, sequence by sequence.
    """

    num_steps: int = 0
    num_failed: int = 0
    num_sequences: int = 0
    num_computed: int = 0
    num_prompt: int = 0
    num_drafts: int = 0
    run_s: float = 0.0
    busy_s: float = 0.0

    def add(self, part: Slice) -> None:
        """Counts one slice that was carried out; before it is committed."""
        self.num_sequences += 1
        self.num_computed += part.num_tokens
        self.num_drafts += len(part.sequence.draft)
        self.num_prompt += max(min(part.start + part.num_tokens, part.sequence.num_prompt) - part.start, 0)


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """An engine at this moment. `queue_s` is the summed wait of `num_started` requests for their first step, and
    `queue_times` are the waits of the latest of them, in order. `compute` over `steps.run_s` and `peaks` is
    utilization; peaks are None where they were not measured. `kernel_fallbacks` as
    `kernels.fallback.Fallbacks.given_up`. `failure` is why its thread has ended by itself.
    """

    num_requests: int
    num_started: int
    queue_s: float
    queue_times: tuple[float, ...]
    steps: StepCounts
    scheduler: SchedulerStatistics
    speculation: SpeculationStatistics
    weight_bytes: int
    page_bytes: int
    compute: ComputeCounts
    peaks: Peaks | None
    kernel_fallbacks: Mapping[str, int]
    failure: str | None
