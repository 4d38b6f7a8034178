"""What becomes of a kernel that this machine cannot run: fewer stages where shared memory is short, else its twin.

Found out when a kernel is first launched, once for each form that it is compiled in. The call at hand is answered, the
log says so, and the engine's statistics count it. Any other error of a launch is raised as it is.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from kernels.jit import Launch
    from kernels.tuning import LaunchConfig

logger = logging.getLogger(__name__)

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


class Fallbacks:
    """Of one engine. Its thread launches; any may ask what has been given up."""

    def __init__(self) -> None:
        self._instead: dict[object, LaunchConfig | None] = {}
        """By a launch's variant: the configuration that runs in place of its own, None where there is none."""
        self._known: set[int] = set()
        """Which kernels these are, by identity: the launches of others are not looked at."""
        self._given_up: Counter[str] = Counter()
        self._num_twin_calls = 0

    @property
    def given_up(self) -> Mapping[str, int]:
        """How many forms of each operation's kernels do not run here, and are computed otherwise."""
        return dict(self._given_up)

    @property
    def num_twin_calls(self) -> int:
        """Calls that a torch twin has answered in a kernel's place."""
        return self._num_twin_calls

    def note(self, operation: str, message: str) -> None:
        """Something was given up: counted, and said in the log."""
        self._given_up[operation] += 1
        logger.warning("%s", message)

    def guarded(
        self,
        operation: str,
        prepare: Callable[_Given, tuple[_Made, list[Launch]]],
        twin: Callable[..., _Made],
    ) -> Callable[_Given, _Made]:
        """As `kernels.jit.launched`, but for what cannot run here: that is the work of `twin`. Imports Triton."""
        from kernels.unfit import unfit

        def runs(launch: Launch) -> bool:
            config: LaunchConfig | None = launch.config
            if id(launch.kernel) in self._known:
                config = self._instead.get(launch.variant, config)
            while config is not None:
                try:
                    (launch if config is launch.config else replace(launch, config=config))()
                    return True
                except Exception as error:  # what is no fault of the kernel's is raised again
                    found = unfit(error)
                    if found is None:
                        raise
                    name, is_deep = launch.kernel.__name__, found.has_too_many_stages and config.num_stages > 1
                    config = replace(config, num_stages=config.num_stages - 1) if is_deep else None
                    self._instead[launch.variant] = config
                    self._known.add(id(launch.kernel))
                    if config is None:
                        self.note(
                            operation,
                            f"{operation} is computed without its kernel {name} from now on, with the same results but "
                            f"slower, since this machine cannot run it ({found.reason}): {found.remedy}",
                        )
                    else:
                        logger.info("%s is tried with %d stages: %s", name, config.num_stages, found.reason)
            return False

        @wraps(prepare)
        def launch(*given: _Given.args, **named: _Given.kwargs) -> _Made:
            made, launches = prepare(*given, **named)
            # Results of the launches that ran are computed once more: nothing of them is added to.
            if all(map(runs, launches)):
                return made
            self._num_twin_calls += 1
            return twin(*given, **named)

        return launch
