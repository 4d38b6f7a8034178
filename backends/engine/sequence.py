"""One answer on its way through the engine: its tokens, its pages, and how far its keys and values reach.

    tokens   | prompt ............ | output ....... |            known tokens, sampled ones included
    computed |=========================>            |            tokens whose K/V lie in `pages`
    step                               |--chunk-->|-drafts->     what the scheduler hands out for a step

There are no phases: a sequence wants `len(tokens) - num_computed` tokens computed (one, when it decodes; many, when
its prompt is new or it was preempted), and a step that reaches the end of its tokens samples the next one.
Owned by the engine's thread; nobody else touches it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from backends.engine.request import Request


class State(Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    HELD = "held"
    """Between two rounds: in no step, its pages kept as long as there is room."""
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable record of one answer. `order` is the arrival number, the tie-break within a priority."""

    request: Request
    index: int
    order: int
    tokens: list[int]
    seed: int
    state: State = State.WAITING
    pages: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_drafted: int = 0
    """Tokens whose K/V the draft model has; may lag behind, which costs acceptance and never correctness."""
    num_cached: int = 0
    """Prompt tokens that came from the prefix cache at first admission."""
    block_hashes: list[bytes] = field(default_factory=list)
    """Chained hashes of the full pages of `tokens`, computed as far as they were needed."""
    draft: list[int] = field(default_factory=list)
    """Tokens proposed to follow `tokens` in the coming step."""
    by_rounds: bool = False
    """Whether it is held after each step that brought tokens."""

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def num_output(self) -> int:
        """Tokens of the answer so far, those that were sampled elsewhere included."""
        return len(self.tokens) - len(self.request.prompt)


@dataclass(frozen=True, slots=True)
class Slice:
    """A sequence's part of one step: `num_tokens` known tokens from `start`, then `num_draft` proposed ones.

    `samples` is True where the known tokens end within this slice, so that logits are wanted for the last known token
    and every draft token.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    num_draft: int
    samples: bool
