"""`type: engine`: a model that runs in this process. PyTorch is imported when it is opened, never before."""

from __future__ import annotations

from functools import partial
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from backends.clock import Clock
from backends.errors import ConfigurationError
from backends.registry import Kind
from backends.serving.meter import Meter
from backends.serving.served_engine import EngineBackend
from backends.serving.settings import EMBEDDED, EngineConfig
from backends.serving.start import start_engine

_NEEDED = ("torch", "numpy", "safetensors", "tokenizers", "jinja2")


def build(name: str, config: EngineConfig, clock: Clock) -> EngineBackend:
    """The backend, its model not loaded yet.

    Raises: ConfigurationError where a folder is not there, or the extra `engine` is not installed.
    """
    missing = [module for module in _NEEDED if find_spec(module) is None]
    if missing:
        problem = f"{', '.join(missing)} is not installed: pip install 'slipstream-gateway[engine]'"
        raise ConfigurationError(f"backends.{name}: type engine needs the extra `engine`; {problem}")
    model = _folder(name, "model", config.model)
    draft = _folder(name, "draft", config.draft) if config.draft is not None else None
    adapter = _folder(name, "adapter", config.adapter) if config.adapter is not None else None
    start = partial(start_engine, name, config, model=model, draft=draft, adapter=adapter)
    meter = Meter(Path(config.model).name, config.max_sequences)
    return EngineBackend(name, clock, start, meter=meter, max_requests=config.max_requests)


def _folder(name: str, key: str, given: str) -> Path:
    if given in EMBEDDED:
        return Path(str(resources.files("backends.engine.demo_models"))) / given.removeprefix("slipstream-")
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise ConfigurationError(f'backends.{name}.{key}: there is no folder "{given}"')
    return folder


KIND = Kind(config=EngineConfig, build=build)
