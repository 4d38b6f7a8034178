"""Tensors by name from safetensors files, one or several with an index. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from backends.engine.errors import ModelError
from backends.engine.model.json_fields import JsonFields

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class Checkpoint:
    """Open files and which of them holds what. Tensors are read one at a time, so that a load needs little more
    memory than the model.
    """

    def __init__(self, files: Mapping[Path, Any], source: Path) -> None:
        """`files`: opened safetensors by path; `source`: what messages call the whole."""
        self.source = source
        self._paths = {name: path for path, opened in files.items() for name in opened.keys()}  # noqa: SIM118
        self._files = files

    @classmethod
    def from_folder(cls, folder: Path) -> Checkpoint:
        """`model.safetensors`, or the shards of its index. Raises ModelError for a file that is missing or torn."""
        index = folder / INDEX_FILE
        if not index.exists():
            return cls.from_file(folder / SINGLE_FILE)
        weight_map = JsonFields.from_file(index).nested("weight_map")
        if weight_map is None:
            raise ModelError(f"{index}: 'weight_map' is missing; copy the file again")
        shards = [folder / shard for shard in sorted(weight_map.texts())]
        return cls({shard: open_file(shard) for shard in shards}, index)

    @classmethod
    def from_file(cls, path: Path) -> Checkpoint:
        """One file. Raises ModelError where it is missing or torn."""
        return cls({path: open_file(path)}, path)

    @property
    def names(self) -> frozenset[str]:
        """Every tensor's name."""
        return frozenset(self._paths)

    @property
    def names_by_file(self) -> dict[Path, list[str]]:
        """The tensors of each file."""
        return {path: [name for name, where in self._paths.items() if where == path] for path in self._files}

    def find(self, name: str) -> Tensor | None:
        """The tensor, whatever its shape and type, None where there is none; a view of the mapped file as in `read`."""
        return self.stored(name) if name in self._paths else None

    def stored(self, name: str) -> Tensor:
        """As `find`. Raises ModelError where there is no such tensor."""
        tensor: Tensor = self._files[self._path(name)].get_tensor(name)
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape as stored. Raises ModelError where there is no such tensor."""
        path = self._path(name)
        return tuple(self._files[path].get_slice(name).get_shape())

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor in its stored type; a view of the mapped file, so copy what is to stay.

        Raises ModelError where it is missing or shaped otherwise.
        """
        path, found = self._path(name), self.shape(name)
        if found != shape:
            raise ModelError(
                f"{path}: tensor {name!r} has shape {list(found)}, expected {list(shape)} from config.json: "
                "the two do not belong together"
            )
        tensor = self.stored(name)
        if not tensor.is_floating_point():
            raise ModelError(f"{path}: tensor {name!r} is {tensor.dtype}, expected a floating type: is it quantized?")
        return tensor

    def _path(self, name: str) -> Path:
        path = self._paths.get(name)
        if path is None:
            raise ModelError(f"{self.source}: tensor {name!r} is missing: a part of the model was not copied")
        return path


def open_file(path: Path) -> Any:
    """An open safetensors file, its tensors views of the mapped file. Raises ModelError where it is missing or torn."""
    try:
        return safe_open(path, framework="pt", device="cpu")
    except FileNotFoundError as exc:
        raise ModelError(f"{path} does not exist: copy it into the model folder") from exc
    except (SafetensorError, OSError) as exc:
        raise ModelError(f"{path} is torn or no safetensors file ({exc}): copy it again") from exc


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """One safetensors file of `tensors`, for whoever may read its folder: the library's own is for its writer alone."""
    save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(path.parent.stat().st_mode & 0o666)
