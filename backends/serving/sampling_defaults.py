"""How a model is sampled where a call does not say: as its makers wrote into its folder's generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from backends.engine.model.json_fields import GENERATION_FILE, JsonFields

_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (1e-6, 1.0),
    "top_k": (0, 2**31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
}


def sampling_defaults(folder: Path) -> Mapping[str, float]:
    """Parameters by their names in a call; temperature 0 where the file says that nothing is drawn.

    Raises: ModelError, naming the file and the field.
    """
    if not (folder / GENERATION_FILE).exists():
        return {}
    fields = JsonFields.from_file(folder / GENERATION_FILE)
    found: dict[str, float] = {}
    for name, (least, most) in _RANGES.items():
        if name not in fields:
            continue
        value = fields.raw(name)
        is_number = isinstance(value, int if name == "top_k" else int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:
            raise fields.invalid(name, f"{'an integer' if name == 'top_k' else 'a number'} from {least} to {most}")
        found[name] = value
    if "do_sample" in fields and not fields.flag("do_sample"):
        found["temperature"] = 0.0
    return found
