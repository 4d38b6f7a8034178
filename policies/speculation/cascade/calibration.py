"""What a cascade goes by: thresholds with the quality that they leave, and the router where that decides. A file.

Quality is the share of right answers, as a share of the target's own. It is estimated on answers that nothing was
learned from, in two halves: one says which threshold keeps a quality, the other what that comes to.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from backends.errors import ConfigurationError
from policies.atomic_file import DamagedFile, read_checked, write_atomically
from policies.speculation.router.evaluation import Interval
from policies.speculation.router.isotonic import fit_rising, step_values
from policies.speculation.router.learned_router import LearnedRouter

Floats = NDArray[np.float64]
Accept = Literal["router", "logprob", "verifier"]

_MAGIC = b"slipstream cascade 1\n"
_SURE = 1.96
"""Standard errors on either side of an estimate that is right 95 times in 100."""
_NUM_THRESHOLDS = 100


class CalibratedThreshold(msgspec.Struct, frozen=True):
    """The draft answers from `score` on, which are `share` of the calls. `chosen_by` says which threshold keeps a
    quality, `held_out` what it comes to on answers that had no part in that.
    """

    score: float
    share: float
    chosen_by: Interval
    held_out: Interval


class Calibration(msgspec.Struct, frozen=True):
    """Of one pair. `rights`: how often the draft is right from a score on, as rising steps (scores, shares).

    `thresholds`: the more calls the draft answers, the later. `encoder` is whose vectors the router knows. `losses`:
    how much oftener the target is right from a negative score on, as rising steps; None in earlier versions' files.
    """

    accept: Accept
    num_answers: int
    weak: float
    strong: float
    thresholds: tuple[CalibratedThreshold, ...]
    rights: tuple[tuple[float, ...], tuple[float, ...]]
    router: LearnedRouter | None = None
    encoder: str = ""
    losses: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def loss_of(self, quality: float) -> Callable[[float], float]:
        """From a score to what is lost where the draft answers, as a share of the target's right answers.

        What is expected is raised by as much as the lower limit of `quality` is below its estimate.
        """
        chosen = self.threshold(quality)
        assert chosen is not None, "read_calibration has looked"
        assert self.losses is not None, "whoever builds the stage has looked"
        estimate = chosen.chosen_by
        doubt = max(1.0, (1 - estimate.low) / max(1 - estimate.value, 1e-3))
        begins, losses = (np.array(part) for part in self.losses)

        def loss(score: float) -> float:
            found = float(step_values(begins, losses, np.array([-score]))[0]) / max(self.strong, 1e-9)
            return found * doubt if found > 0 else found

        return loss

    def threshold(self, quality: float) -> CalibratedThreshold | None:
        """That by which the draft answers most calls while the quality stays; None where there is none.

        The lower limit has to be that good, for this threshold and all that are stricter.
        """
        found = None
        for each in self.thresholds:
            if each.chosen_by.low < quality:
                break
            found = each
        return found


def calibrate(
    accept: Accept,
    scores: Floats,
    weak: Floats,
    strong: Floats,
    random: np.random.Generator,
    *,
    router: LearnedRouter | None = None,
    encoder: str = "",
) -> Calibration:
    """scores, weak, strong: [answers]; the higher a score, the likelier the draft is right.

    Raises: ValueError where no score is a number, or the target is never right.
    """
    if not np.isfinite(scores).all():
        raise ValueError("a score is not a number")
    if not strong.any():
        raise ValueError("the strong model was never right: there is no quality to keep")
    halves = random.permutation(len(scores)) % 2
    choosing, held = (halves == 0), (halves == 1)
    levels = np.unique(np.quantile(scores, np.linspace(1, 0, _NUM_THRESHOLDS + 1)[1:], method="lower"))[::-1]
    thresholds = tuple(
        CalibratedThreshold(
            score=float(level),
            share=float((scores >= level).mean()),
            chosen_by=quality_of(scores[choosing] >= level, weak[choosing], strong[choosing]),
            held_out=quality_of(scores[held] >= level, weak[held], strong[held]),
        )
        for level in levels
    )
    begins, rights = fit_rising(scores, weak)
    loss_begins, losses = fit_rising(-scores, strong - weak)
    return Calibration(
        accept=accept,
        num_answers=len(scores),
        weak=float(weak.mean()),
        strong=float(strong.mean()),
        thresholds=thresholds,
        rights=(tuple(begins.tolist()), tuple(rights.tolist())),
        router=router,
        encoder=encoder,
        losses=(tuple(loss_begins.tolist()), tuple(losses.tolist())),
    )


def quality_of(is_drafts: NDArray[np.bool_], weak: Floats, strong: Floats) -> Interval:
    """Right answers where the draft gives those of `is_drafts`, as a share of the target's (ratio estimator)."""
    right = np.where(is_drafts, weak, strong)
    target = max(float(strong.mean()), 1e-9)
    quality = float(right.mean()) / target
    error = float(np.std(right - quality * strong)) / target / len(right) ** 0.5
    return Interval(quality, quality - _SURE * error, quality + _SURE * error)


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the file whole. Raises: OSError."""
    write_atomically(path, msgspec.msgpack.encode(calibration), _MAGIC)


def read_calibration(path: Path, accept: Accept, quality: float) -> Calibration:
    """The calibration of a cascade that accepts so and is to keep that quality.

    Raises: ConfigurationError that says what to do.
    """
    again = "write it anew with `slipstream calibrate`"
    try:
        content = read_checked(path, _MAGIC)
        found = None if content is None else msgspec.msgpack.decode(content, type=Calibration)
    except (DamagedFile, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is no calibration of a cascade, or is damaged: {again}") from error
    except OSError as error:
        raise ConfigurationError(f"{path}: the calibration cannot be read: {error.strerror}") from error
    if found is None:
        raise ConfigurationError(
            f"{path}: there is no such file: `slipstream calibrate --on labelled.jsonl --out {path}` writes it"
        )
    if found.accept != accept or (found.router is None) == (accept == "router"):
        raise ConfigurationError(
            f"{path} is a calibration for accept: {found.accept}, and not for accept: {accept}: {again} "
            f"--accept {accept}, or change the policy"
        )
    if found.threshold(quality) is None:
        best = max((each.chosen_by.low for each in found.thresholds), default=0.0)
        raise ConfigurationError(
            f"{path}: no threshold keeps quality {quality:g}; the strictest keeps "
            f"{best:.3f} for sure: lower `quality`, or calibrate on more answers than {found.num_answers}"
        )
    return found
