"""Policies are described without running their code in the front."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflightd.daemon.errors import SwapRefused
from inflightd.daemon.front import policies as policies_module
from inflightd.daemon.front.policies import PolicyCards, configured_policy
from inflightd.daemon.rehearsal.messages import Job, Report
from inflightd.daemon.rehearsal.process import rehearse
from inflightd.schedulers import registry
from tests.support.plugin_projects import FAULTY, lay_out, on_path


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    lay_out(FAULTY, folder)
    return folder


@pytest.fixture(autouse=True)
def _installed(plugins: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in on_path(plugins).items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(plugins))
    registry.refresh()
    yield
    monkeypatch.undo()
    registry.refresh()


class Counted:
    """The jobs that children were given."""

    def __init__(self) -> None:
        self.jobs: list[str] = []

    async def __call__(self, job: Job) -> Report:
        self.jobs.append(job.policy)
        return await rehearse(job)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    monkeypatch.setattr(policies_module, "rehearse", counted)
    return counted


async def test_somebody_elses_policy_is_described_by_a_child_and_never_imported_here() -> None:
    card = await PolicyCards().card("faulty")
    assert (card.name, card.summary, card.problem) == ("faulty", "Fails as it is told.", "")
    assert [option.name for option in card.options] == ["way", "at", "from_step", "rehearsed"]
    assert not [name for name in sys.modules if name.startswith("faulty_policies")]


async def test_what_a_child_said_is_remembered_until_the_file_changes(counted: Counted, plugins: Path) -> None:
    cards = PolicyCards()
    first = await cards.card("faulty")
    assert await cards.card("faulty") == first
    assert counted.jobs == ["faulty"]
    os.utime(plugins / "faulty_policies" / "planning.py", ns=(1, 1))
    assert await cards.card("faulty") == first
    assert counted.jobs == ["faulty", "faulty"]


async def test_a_broken_plugin_is_listed_with_its_problem_and_hides_no_other(counted: Counted) -> None:
    cards = PolicyCards()
    broken, exiting, own, unknown = await asyncio.gather(
        cards.card("import-raises"), cards.card("import-exits"), cards.card("static-batch"), cards.card("nowhere")
    )
    assert "RuntimeError: not on this machine" in broken.problem
    assert "SystemExit: 4" in exiting.problem
    assert own.summary
    assert own.options
    assert "installed: " in unknown.problem
    assert sorted(counted.jobs) == ["import-exits", "import-raises"], "what is shipped is described here"


def test_a_configured_policy_of_somebody_else_is_built_by_a_child() -> None:
    policy = configured_policy("faulty_policies.planning:Unlisted", {"from_step": 7})
    assert (policy.name, policy.reference) == ("unlisted", "faulty_policies.planning:Unlisted")
    assert policy.options == {"way": "none", "at": "plan", "from_step": 7, "rehearsed": True}
    with pytest.raises(SwapRefused, match="from_step") as caught:
        configured_policy("faulty_policies.planning:Unlisted", {"from_step": "soon"})
    assert caught.value.rule == "options"
