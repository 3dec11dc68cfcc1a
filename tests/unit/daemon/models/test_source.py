"""Names, paths and directories after --model, and where the cache is."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflightd.daemon.errors import ConfigError
from inflightd.daemon.models.cache import cache_dir, cached_path, models_dir
from inflightd.daemon.models.catalog import CATALOG
from inflightd.daemon.models.source import ModelSource, resolve_model

NAME = "smollm2-135m-instruct"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CACHE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "xdg" / "inflightd"


def test_systemds_directory_wins_over_xdg_over_home(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir() == cache
    assert models_dir() == cache / "models"
    monkeypatch.setenv("CACHE_DIRECTORY", "/var/cache/inflightd:/var/cache/other")
    assert cache_dir() == Path("/var/cache/inflightd")
    monkeypatch.delenv("CACHE_DIRECTORY")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_dir() == Path("/home/someone/.cache/inflightd")


def test_a_known_name_that_is_not_cached_says_what_to_run() -> None:
    with pytest.raises(ConfigError, match=f"run: inflightd model pull {NAME}"):
        resolve_model(NAME)


def test_a_known_name_resolves_once_a_file_of_the_right_size_is_there() -> None:
    path = cached_path(CATALOG[NAME])
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(1000)
    with pytest.raises(ConfigError, match="not in the cache"):
        resolve_model(NAME)
    with path.open("wb") as file:
        file.truncate(CATALOG[NAME].size_bytes)
    assert resolve_model(NAME) == ModelSource("gguf", path, NAME)


def test_a_path_to_a_file_is_a_gguf_named_by_its_stem(tmp_path: Path) -> None:
    path = tmp_path / "My-Model.Q8_0.gguf"
    path.write_bytes(b"GGUF")
    assert resolve_model(str(path)) == ModelSource("gguf", path, "My-Model.Q8_0")


def test_a_directory_needs_a_config(tmp_path: Path) -> None:
    directory = tmp_path / "some-model"
    directory.mkdir()
    with pytest.raises(ConfigError, match=r"config\.json"):
        resolve_model(str(directory))
    (directory / "config.json").write_text("{}")
    assert resolve_model(str(directory)) == ModelSource("hf", directory, "some-model")


def test_anything_else_names_the_known_models() -> None:
    with pytest.raises(ConfigError, match=f"known: {NAME}") as caught:
        resolve_model("no-such-thing")
    assert (caught.value.field, caught.value.value) == ("model", "'no-such-thing'")
