"""Finding, checking and building policies by name.

A policy is an entry point of the group `inflightd.schedulers`; any installed distribution may add one.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from inflightd.schedulers.api import Policy
from inflightd.schedulers.options import OptionValue, describe, parse_options

GROUP: Final = "inflightd.schedulers"


class PolicyLoadError(Exception):
    """A policy cannot be used.  `rule` is a stable machine word: not_found, duplicate, import, contract, construct."""

    def __init__(self, policy: str, rule: str, detail: str) -> None:
        self.policy, self.rule, self.detail = policy, rule, detail
        super().__init__(f"policy {policy}: {rule}: {detail}")


def available() -> tuple[str, ...]:
    """Names of the installed policies, sorted.  Raises `PolicyLoadError` (duplicate)."""
    return tuple(_installed())


def load(name: str) -> type[Policy]:
    """The class behind `name`, checked by `verify`.  Raises `PolicyLoadError` (all rules but construct)."""
    found = _installed().get(name)
    if found is None:
        raise PolicyLoadError(name, "not_found", f"installed: {', '.join(available()) or 'none'}")
    try:
        policy_class = found.load()
    except Exception as failure:
        raise PolicyLoadError(name, "import", f"{found.value}: {type(failure).__name__}: {failure}") from failure
    return verify(policy_class, name)


def build(name: str, options: Mapping[str, OptionValue] | None = None) -> Policy:
    """A policy ready to plan.  Raises `PolicyLoadError`, or `OptionError` for a bad option."""
    policy_class: type[Any] = load(name)
    parsed = parse_options(policy_class.Options, options or {})
    try:
        policy: Policy = policy_class(parsed)
    except Exception as failure:
        raise PolicyLoadError(name, "construct", f"{type(failure).__name__}: {failure}") from failure
    return policy


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


@cache
def _installed() -> Mapping[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:  # the same line twice is one distribution seen on two paths
            raise PolicyLoadError(entry.name, "duplicate", f"registered as {other.value} and as {entry.value}")
    return found
