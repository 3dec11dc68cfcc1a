"""The presets of examples/ are whole configurations that the daemon accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflightd.daemon.config import Config, load_config
from inflightd.daemon.front.starting import start_message
from inflightd.schedulers.registry import build

PRESETS = ("batch", "interactive", "shared-prefix")


@pytest.fixture(params=PRESETS)
def preset(request: pytest.FixtureRequest, root: Path) -> Path:
    return root / "examples" / "presets" / f"{request.param}.toml"


def test_every_preset_is_looked_at(root: Path) -> None:
    assert sorted(path.stem for path in (root / "examples" / "presets").glob("*.toml")) == list(PRESETS)


def test_a_preset_loads_and_its_policy_can_be_built(preset: Path) -> None:
    config = load_config(preset, {}, {})
    policy = build(config.scheduler, config.scheduler_options)
    assert policy.name == config.scheduler
    start = start_message(config, "model", config.model, "json")
    assert start.policy == config.scheduler
    assert "default" in {each.name for each in start.classes}


def test_a_preset_says_how_to_use_it_and_why_each_value(preset: Path) -> None:
    text = preset.read_text()
    assert f"inflightd serve --config examples/presets/{preset.name}" in text
    config, plain = load_config(preset, {}, {}), Config(model="m")
    for name in ("scheduler", "max_batch_size", "max_num_tokens", "default_max_tokens"):
        lines = text.splitlines()
        at = next(number for number, line in enumerate(lines) if line.startswith(f"{name} ="))
        assert lines[at - 1].startswith("#"), f"{name} has no comment above it"
    assert config != plain
