"""A LoRA adapter (Hu et al., 2021) as PEFT saves it, merged into the weights while they load."""

from __future__ import annotations

import math
import re
from pathlib import Path

import torch
from torch import Tensor

from backends.engine.errors import ModelError
from backends.engine.model.checkpoint import Checkpoint
from backends.engine.model.json_fields import JsonFields

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_PREFIX = "base_model.model."
_PAIR = re.compile(re.escape(_PREFIX) + r"(?P<module>.+)\.lora_(?P<half>[AB])\.weight")


class LoraAdapter:
    """Low-rank updates by module name; `merge` each weight, then `check_all_merged`."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelError for a file that is missing or torn, and for what merging cannot express."""
        fields = JsonFields.from_file(folder / CONFIG_FILE)
        if fields.text("peft_type", "LORA") != "LORA":
            raise fields.invalid("peft_type", "'LORA'")
        for name in ("use_dora", "fan_in_fan_out", "lora_bias"):
            if fields.flag(name):
                raise fields.invalid(name, "false: this kind of adapter is not served")
        self._fields = fields
        self._checkpoint = Checkpoint.from_file(folder / WEIGHTS_FILE)
        self._waiting = set[str]()
        for name in self._checkpoint.names:
            pair = _PAIR.fullmatch(name)
            if pair is None:
                raise ModelError(f"{folder / WEIGHTS_FILE}: tensor {name!r} is no lora_A or lora_B of a linear layer")
            self._waiting.add(pair["module"])

    def merge(self, name: str, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """`weight` [out, in] + scale * B @ A where the adapter has a pair for `name`, else `weight` itself.

        The sum is worked out in float32 and rounded once, to `dtype`. Raises ModelError where the pair does not fit.
        """
        module = name.removesuffix(".weight")
        if module not in self._waiting:
            return weight
        self._waiting.discard(module)
        out_size, in_size = weight.shape
        rank = self._checkpoint.shape(f"{_PREFIX}{module}.lora_A.weight")[0]
        down = self._checkpoint.read(f"{_PREFIX}{module}.lora_A.weight", (rank, in_size))
        up = self._checkpoint.read(f"{_PREFIX}{module}.lora_B.weight", (out_size, rank))
        update = (up.float() @ down.float()).mul_(self._scale(module, rank)).to(weight.device)
        return (weight.float() + update).to(dtype)

    def check_all_merged(self) -> None:
        """Raises ModelError where the adapter was made for modules that this model does not have."""
        if self._waiting:
            names = ", ".join(sorted(self._waiting)[:3])
            raise ModelError(f"{self._fields.where}: the model has no {names}: was the adapter made for another model?")

    def _scale(self, module: str, rank: int) -> float:
        alpha = self._fields.number("lora_alpha")
        for pattern, value in (self._fields.raw("alpha_pattern") or {}).items():
            if re.fullmatch(rf"(.*\.)?({pattern})", module):
                alpha = float(value)
        return alpha / math.sqrt(rank) if self._fields.flag("use_rslora") else alpha / rank
