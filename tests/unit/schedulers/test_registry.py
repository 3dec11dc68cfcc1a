"""Policies are found by entry point and checked before they are used."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any, ClassVar

import pytest

from inflightd.schedulers import registry
from inflightd.schedulers.options import OptionError, option
from inflightd.schedulers.registry import PolicyLoadError


@dataclass(frozen=True)
class Options:
    slots: int = option(1, help="slots")


class Good:
    name: ClassVar[str] = "good"
    Options = Options

    def __init__(self, options):
        if options.slots == 13:
            raise RuntimeError("unlucky")
        self.options = options

    def plan(self, view):
        raise NotImplementedError


@pytest.fixture
def install(monkeypatch):
    """Replace the installed entry points by (name, value) pairs."""

    def replace(*pairs):
        points = EntryPoints(EntryPoint(name, value, registry.GROUP) for name, value in pairs)
        monkeypatch.setattr(registry, "entry_points", lambda group: points)
        registry._installed.cache_clear()

    yield replace
    monkeypatch.undo()
    registry._installed.cache_clear()


def test_the_four_shipped_policies_are_installed():
    expected = {"conservative-admission", "latency-guarantee", "static-batch", "throughput-max"}
    assert expected <= set(registry.available())
    assert all(registry.load(name).name == name for name in expected)


def test_options_are_parsed_when_a_policy_is_built():
    policy: Any = registry.build("static-batch", {"slots": "4"})
    assert policy.options.slots == 4
    with pytest.raises(OptionError, match="unknown option"):
        registry.build("static-batch", {"slot": 4})


def test_unknown_policy_lists_the_known_ones():
    with pytest.raises(PolicyLoadError, match=r"installed: .*static-batch") as failed:
        registry.load("statc-batch")
    assert failed.value.rule == "not_found"


def test_policy_that_fails_to_import_is_not_called_unknown(install):
    install(("broken", "inflightd.no_such_module:Policy"))
    with pytest.raises(PolicyLoadError, match="no_such_module") as failed:
        registry.load("broken")
    assert failed.value.rule == "import"
    assert isinstance(failed.value.__cause__, ModuleNotFoundError)


def test_one_name_for_two_policies_is_an_error(install):
    install(("good", "a:A"), ("good", "b:B"))
    with pytest.raises(PolicyLoadError, match=r"a:A.*b:B") as failed:
        registry.load("good")
    assert failed.value.rule == "duplicate"


def test_a_name_that_two_claim_leaves_the_others_usable(install):
    own = "inflightd.schedulers.static_batch:StaticBatch"
    install(("good", "a:A"), ("good", "b:B"), ("static-batch", own))
    assert registry.available() == ("good", "static-batch")
    assert registry.load("static-batch").name == "static-batch"


def test_what_is_installed_is_told_without_importing_it(install):
    install(("broken", "inflightd.no_such_module:Policy"), ("own", "inflightd.schedulers.static_batch:StaticBatch"))
    assert registry.installed("broken") == registry.Installed("broken", "inflightd.no_such_module:Policy", "", False)
    assert registry.installed("own").is_own
    with pytest.raises(PolicyLoadError, match="not_found"):
        registry.installed("nowhere")


def test_what_is_installed_later_is_found_after_a_refresh(install, monkeypatch):
    install()
    assert registry.available() == ()
    points = EntryPoints([EntryPoint("late", "a:A", registry.GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert registry.available() == ()
    registry.refresh()
    assert registry.available() == ("late",)


@pytest.mark.parametrize("failure", ["raise SystemExit(3)", "import no_such_module", "1 / 0"])
def test_a_module_that_fails_when_it_is_imported_is_an_error_whatever_it_raises(
    install, monkeypatch, tmp_path, failure
):
    (tmp_path / "failing_policy.py").write_text(failure)
    monkeypatch.syspath_prepend(str(tmp_path))
    install(("failing", "failing_policy:Policy"))
    with pytest.raises(PolicyLoadError, match="failing_policy:Policy") as failed:
        registry.load("failing")
    assert failed.value.rule == "import"


def test_a_class_is_found_by_its_module_and_shown_by_its_name():
    policy: Any = registry.build("inflightd.schedulers.static_batch:StaticBatch", {"slots": 2})
    assert (policy.name, policy.options.slots) == ("static-batch", 2)
    assert registry.is_reference("inflightd.schedulers.static_batch:StaticBatch")
    assert not registry.is_reference("static-batch")


@pytest.mark.parametrize("reference", [":", "module:", "two words:Policy", "line\nbreak:Policy"])
def test_what_is_no_module_and_class_is_refused_as_that(reference):
    with pytest.raises(PolicyLoadError, match="is not of the form module:Class"):
        registry.load(reference)


def test_a_class_given_by_its_module_may_not_take_an_installed_name(monkeypatch, tmp_path):
    (tmp_path / "borrowed.py").write_text(
        "from inflightd.schedulers.static_batch import StaticBatch\nclass Mine(StaticBatch): pass\nclass Nameless: pass"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PolicyLoadError, match="installed inflightd") as failed:
        registry.load("borrowed:Mine")
    assert failed.value.rule == "duplicate"
    with pytest.raises(PolicyLoadError, match="no name") as failed:
        registry.load("borrowed:Nameless")
    assert failed.value.rule == "contract"


def test_one_distribution_seen_twice_is_no_duplicate(install):
    install(("good", "a:A"), ("good", "a:A"))
    assert registry.available() == ("good",)


def test_constructor_that_raises_is_told_apart(monkeypatch):
    monkeypatch.setattr(registry, "load", lambda policy: Good)
    policy: Any = registry.build("good", {"slots": 3})
    assert policy.options == Options(3)
    with pytest.raises(PolicyLoadError, match="unlucky") as failed:
        registry.build("good", {"slots": 13})
    assert failed.value.rule == "construct"


def _without_plan():
    return type("P", (), {"name": "good", "Options": Options, "__init__": Good.__init__})


def _with(**changed):
    return type("P", (Good,), changed)


async def _plan_coroutine(self, view):
    raise NotImplementedError


@dataclass
class Thawed:
    slots: int = option(1, help="slots")


@pytest.mark.parametrize(
    ("policy_class", "detail"),
    [
        (Good(Options()), "not a class"),
        (_with(name="better"), "name is 'better'"),
        (_with(Options=dict), "not a dataclass"),
        (_with(Options=Thawed), "not frozen"),
        (_without_plan(), "plan"),
        (_with(plan=lambda self: None), "plan"),
        (_with(plan=_plan_coroutine), "coroutine"),
        (_with(__init__=lambda self: None), "__init__"),
    ],
)
def test_class_that_breaks_the_contract_is_refused(policy_class, detail):
    with pytest.raises(PolicyLoadError, match=detail) as failed:
        registry.verify(policy_class, "good")
    assert failed.value.rule == "contract"


def test_class_that_keeps_the_contract_is_accepted():
    assert registry.verify(Good, "good") is Good
