"""Names what decides the tokens of an answer: OpenAI's `system_fingerprint`, equal where the answers would be equal.

That is what lies in the model's folder, wherever the folder lies; the settings that change numbers; and the device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from backends.serving.settings import EngineConfig

_SETTINGS = ("dtype", "quantization", "kv_dtype", "kernels", "tensor_parallel")
_READ = frozenset({".json", ".jinja", ".safetensors", ".gguf"})
_MAX_WHOLE_BYTES = 64 * 1024**2
_STEP_BYTES = 1024**2
_SAMPLE_BYTES = 4096
"""Of larger files this much of each MiB: training moves every tensor, and to read gigabytes would take too long."""


def fingerprint(
    config: EngineConfig, *, model: Path, adapter: Path | None, device: str, max_context: int, version: str
) -> str:
    """The fingerprint of a model as it is served; reads its files, so not on the event loop.

    `device` says what computes, `max_context` where an answer ends, `version` is that of this package.
    """
    settings = config.model_dump(include=set(_SETTINGS))
    digest = hashlib.blake2b(msgspec.json.encode([settings, device, max_context, version], order="sorted"))
    for folder in (model, adapter):
        for part in _contents(folder) if folder is not None else ():
            digest.update(part)
    return f"fp_{digest.hexdigest()[:16]}"


def _contents(folder: Path) -> Iterator[bytes]:
    """Each file's name, size, and bytes as far as they are read."""
    for path in sorted(folder.iterdir()):
        if path.suffix not in _READ or not path.is_file():
            continue
        size = path.stat().st_size
        yield b"\0%b\0%d\0" % (path.name.encode("utf-8", "surrogateescape"), size)
        with path.open("rb") as file:
            if size <= _MAX_WHOLE_BYTES:
                yield file.read()
                continue
            for at in range(0, size, _STEP_BYTES):
                file.seek(at)
                yield file.read(_SAMPLE_BYTES)
