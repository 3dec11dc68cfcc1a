"""From what the user wrote after --model to a file or directory that exists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inflightd.daemon.errors import ConfigError
from inflightd.daemon.models.cache import cached_path, is_cached
from inflightd.daemon.models.catalog import CATALOG


@dataclass(frozen=True, slots=True)
class ModelSource:
    """gguf: path is one file.  hf: path is a directory with config.json and tokenizer.json."""

    kind: Literal["gguf", "hf"]
    path: Path
    name: str  # what clients call it


def resolve_model(value: str) -> ModelSource:
    """A name of the catalogue or a path to a GGUF or a Hugging Face directory.

    A known name wins over a file of the same name: write ./NAME for the file.
    Raises ConfigError (field `model`) with the remedy.
    """
    if (model := CATALOG.get(value)) is not None:
        if not is_cached(model):
            raise ConfigError("model", value, f"not in the cache; run: inflightd model pull {value}")
        return ModelSource("gguf", cached_path(model), model.name)
    path = Path(value).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError("model", value, "the directory holds no config.json")
        return ModelSource("hf", path, path.resolve().name)
    if path.is_file():
        return ModelSource("gguf", path, path.stem)
    known = ", ".join(sorted(CATALOG))
    raise ConfigError("model", value, f"no such file or directory, and not a known model (known: {known})")
