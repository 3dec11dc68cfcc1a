"""docs/security.md names commands, options, variables and bounds that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from inflightd.clients import access
from inflightd.daemon.config.catalog import config_fields
from inflightd.daemon.config.load import OTHER_VARIABLES
from inflightd.daemon.core.sampling.params import MAX_LOGPROBS, MAX_SAMPLES
from inflightd.daemon.front import validation
from inflightd.daemon.rpc.conversion import MAX_DETOKENIZED_IDS
from tests.support.shown_commands import wrong_commands


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "security.md").read_text()


def test_every_command_and_option_shown_exists(pyproject: dict[str, Any], page: str) -> None:
    assert wrong_commands(page, pyproject["project"]["entry-points"]["inflightd.commands"]) == {}


def test_every_variable_shown_is_one(page: str) -> None:
    known = {field.variable for field in config_fields()} | OTHER_VARIABLES
    assert set(re.findall(r"INFLIGHTD_[A-Z_]*[A-Z]", page)) - {"INFLIGHTD_CLIENT"} <= known


def test_the_daemon_leaves_the_clients_variables_alone() -> None:
    variables = {value for name, value in vars(access).items() if name.endswith("_VARIABLE")}
    assert len(variables) == 5
    assert variables <= OTHER_VARIABLES


def test_the_bounds_are_those_of_the_code(page: str) -> None:
    table = page[page.index("## Limits of a call") : page.index("## How it is tested")]
    bounds = (
        validation.MAX_STOP_STRINGS,
        validation.MAX_STOP_STRING_CHARS,
        validation.MAX_STOP_TOKEN_IDS,
        validation.MAX_BAD_WORDS,
        validation.MAX_BAD_WORD_CHARS,
        validation.MAX_LOGIT_BIAS_ENTRIES,
        validation.MAX_NAME_CHARS,
        validation.MAX_ROLE_CHARS,
        MAX_SAMPLES,
        MAX_LOGPROBS,
    )
    missing = [bound for bound in bounds if not re.search(rf"\b{bound}\b", table)]
    assert missing == []
    assert f"{MAX_DETOKENIZED_IDS:,}" in table
