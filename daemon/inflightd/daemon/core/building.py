"""From a policy's name, or "module:Class", and options to a policy; whatever is wrong is one typed error."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import getdoc
from typing import TYPE_CHECKING

from inflightd.daemon.core.drain import Drain, DrainOptions
from inflightd.daemon.core.wire import sendable
from inflightd.daemon.errors import SwapRefused
from inflightd.schedulers import registry
from inflightd.schedulers.options import OptionError

if TYPE_CHECKING:
    from inflightd.daemon.core.wire import Start
    from inflightd.schedulers.api import Policy
    from inflightd.schedulers.options import OptionValue


def build_policy(policy: str, options: Mapping[str, OptionValue]) -> Policy:
    """Raises `SwapRefused`: unknown, duplicate, import, contract, options or construct."""
    if not registry.is_reference(policy) and policy not in registry.available():
        registry.refresh()  # installed since this process began
    try:
        return registry.build(policy, options)
    except OptionError as error:
        raise SwapRefused("options", sendable(str(error))) from error
    except registry.PolicyLoadError as error:
        raise not_loaded(error) from error


def not_loaded(error: registry.PolicyLoadError) -> SwapRefused:
    """The same, as the daemon says it."""
    rule = "unknown" if error.rule == "not_found" else error.rule
    return SwapRefused(rule, sendable(f"policy {error.policy}: {error.detail}"))


def summary(policy_class: type[Policy]) -> str:
    """First line of its documentation."""
    return sendable((getdoc(policy_class) or "").partition("\n")[0])


def first_policy(start: Start) -> Policy:
    """The one an engine process begins with; `drain` if all that were tried have failed.  Raises as `build_policy`."""
    if start.policy == Drain.name:
        return Drain(DrainOptions())
    return build_policy(start.policy, start.policy_options)
