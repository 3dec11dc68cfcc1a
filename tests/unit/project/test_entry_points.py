"""Every entry point leads to the thing its group promises."""

from __future__ import annotations

import importlib
from typing import Any

import click

from inflightd.schedulers.api import Policy


def resolve(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def test_every_scheduler_is_a_policy_of_that_name(pyproject: dict[str, Any]) -> None:
    points = pyproject["project"]["entry-points"]["inflightd.schedulers"]
    assert set(points) == {"throughput-max", "latency-guarantee", "conservative-admission", "static-batch"}
    for name, target in points.items():
        policy = resolve(target)
        assert policy.name == name
        assert isinstance(policy(policy.Options()), Policy)


def test_every_command_is_a_click_command_of_that_name(pyproject: dict[str, Any]) -> None:
    for name, target in pyproject["project"]["entry-points"]["inflightd.commands"].items():
        command = resolve(target)
        assert isinstance(command, click.Command), name
        assert command.name == name


def test_the_console_script_exists(pyproject: dict[str, Any]) -> None:
    assert callable(resolve(pyproject["project"]["scripts"]["inflightd"]))
