"""Finding, checking and building policies.

A policy is an entry point of the group `inflightd.schedulers`, chosen by name; any installed distribution may add one.
Or it is a class anywhere on the import path, chosen as "module:Class": for the operator's own configuration, never for
what comes over a wire, because to name a module is to run it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from inflightd.schedulers.api import Policy
from inflightd.schedulers.options import OptionValue, describe, parse_options

GROUP: Final = "inflightd.schedulers"
_OWN_PACKAGE: Final = "inflightd.schedulers."


class PolicyLoadError(Exception):
    """A policy cannot be used.  `rule` is a stable machine word: not_found, duplicate, import, contract, construct."""

    def __init__(self, policy: str, rule: str, detail: str) -> None:
        self.policy, self.rule, self.detail = policy, rule, detail
        super().__init__(f"policy {policy}: {rule}: {detail}")


@dataclass(frozen=True, slots=True)
class Installed:
    """What is known of an installed policy before any of its code runs."""

    name: str
    value: str  # "module:Class"
    version: str  # of its distribution; empty if there is none
    is_own: bool  # shipped with inflightd: as trusted as the loop itself


def available() -> tuple[str, ...]:
    """Names of the installed policies, sorted; those that cannot be used are among them."""
    return tuple(_installed())


def installed(name: str) -> Installed:
    """Raises `PolicyLoadError` (not_found, duplicate).  Imports nothing of the policy."""
    point = _entry_point(name)
    version = point.dist.version if point.dist is not None else ""
    return Installed(name, point.value, version, point.module.startswith(_OWN_PACKAGE))


def refresh() -> None:
    """Look again: what was installed or removed meanwhile counts from now on."""
    importlib.invalidate_caches()
    _installed.cache_clear()
    _installed()  # tens of milliseconds: paid here


def is_reference(policy: str) -> bool:
    """True for "module:Class", False for the name of an installed policy."""
    return ":" in policy


def load(policy: str) -> type[Policy]:
    """The class behind a name or a "module:Class", checked by `verify`.

    Raises `PolicyLoadError` (all rules but construct).
    """
    point = EntryPoint(policy, policy, GROUP) if is_reference(policy) else _entry_point(policy)
    if EntryPoint.pattern.match(point.value) is None:
        raise PolicyLoadError(policy, "import", f"{point.value!r} is not of the form module:Class")
    try:
        policy_class = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as failure:  # a module may do anything when it is imported, raise SystemExit too
        raise PolicyLoadError(policy, "import", f"{point.value}: {_told(failure)}") from failure
    if not is_reference(policy):
        return verify(policy_class, policy)
    name = getattr(policy_class, "name", None)
    if not isinstance(name, str) or not name:
        raise PolicyLoadError(policy, "contract", f"{policy_class!r} has no name")
    for other in _installed().get(name, ()):
        if other.value != policy:
            raise PolicyLoadError(policy, "duplicate", f"its name {name} is that of the installed {other.value}")
    return verify(policy_class, name)


def build(policy: str, options: Mapping[str, OptionValue] | None = None) -> Policy:
    """A policy ready to plan.  Raises `PolicyLoadError`, or `OptionError` for a bad option."""
    policy_class: type[Any] = load(policy)
    parsed = parse_options(policy_class.Options, options or {})
    try:
        built: Policy = policy_class(parsed)
    except KeyboardInterrupt:
        raise
    except BaseException as failure:
        raise PolicyLoadError(policy, "construct", _told(failure)) from failure
    return built


def verify(policy_class: object, name: str) -> type[Policy]:
    """`policy_class` if it keeps the contract of `Policy` under `name`.  Raises `PolicyLoadError` (contract)."""
    if not isinstance(policy_class, type):
        raise PolicyLoadError(name, "contract", f"{policy_class!r} is not a class")
    own_name = getattr(policy_class, "name", None)
    if own_name != name:
        raise PolicyLoadError(name, "contract", f"{policy_class.__name__}.name is {own_name!r}")
    options_class = getattr(policy_class, "Options", None)
    if not (isinstance(options_class, type) and is_dataclass(options_class)):
        raise PolicyLoadError(name, "contract", f"{policy_class.__name__}.Options is not a dataclass")
    if not options_class.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise PolicyLoadError(name, "contract", f"{options_class.__name__} is not frozen")
    try:
        describe(options_class)
        options_class()
    except (TypeError, ValueError) as failure:
        raise PolicyLoadError(name, "contract", str(failure)) from failure
    _verify_call(policy_class, name, "plan", "(self, view)", 2)
    _verify_call(policy_class, name, "__init__", "(self, options)", 2)
    return policy_class


def _verify_call(policy_class: type, name: str, method: str, wanted: str, arguments: int) -> None:
    function = getattr(policy_class, method, None)
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise PolicyLoadError(name, "contract", f"{policy_class.__name__}.{method}{wanted} is missing or a coroutine")
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError as failure:
        raise PolicyLoadError(
            name, "contract", f"{policy_class.__name__}.{method} is not {wanted}: {failure}"
        ) from None


def _entry_point(name: str) -> EntryPoint:
    found = _installed().get(name)
    if not found:
        raise PolicyLoadError(name, "not_found", f"installed: {', '.join(available()) or 'none'}")
    if len(found) > 1:  # the others stay usable
        raise PolicyLoadError(name, "duplicate", f"registered as {' and as '.join(point.value for point in found)}")
    return found[0]


@cache
def _installed() -> Mapping[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        points = found.setdefault(point.name, [])
        if point.value not in [other.value for other in points]:  # one distribution may be seen on two paths
            points.append(point)
    return found


def _told(failure: BaseException) -> str:
    try:
        return f"{type(failure).__name__}: {failure}"
    except Exception:  # its own __str__
        return type(failure).__name__
