"""Where models and what is derived from them are kept."""

from __future__ import annotations

import os
from pathlib import Path

from inflightd.daemon.models.catalog import KnownModel


def cache_dir() -> Path:
    """systemd's CACHE_DIRECTORY, else inflightd/ under XDG_CACHE_HOME or ~/.cache.  Not created here."""
    if given := os.environ.get("CACHE_DIRECTORY"):
        return Path(given.split(":", 1)[0])  # systemd joins several with colons; the first is ours
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore a relative path.
    return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "inflightd"


def models_dir() -> Path:
    return cache_dir() / "models"


def weights_dir() -> Path:
    """Dequantized weights, one mapped file per model; safe to delete."""
    return cache_dir() / "weights"


def cached_path(model: KnownModel) -> Path:
    """Where `model` lies once it has been pulled."""
    return models_dir() / model.file_name


def is_cached(model: KnownModel) -> bool:
    """The file appears by an atomic rename after its hash was verified, so its size is proof enough."""
    try:
        return cached_path(model).stat().st_size == model.size_bytes
    except OSError:
        return False
