"""Policy swaps: checked here, made by the engine between two steps, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from inflightd.daemon.core.wire import PolicyFault, SwapDone, SwapPolicy
from inflightd.daemon.errors import SwapRefused, Unavailable
from inflightd.daemon.front.engine_link import EngineLink, EngineState
from inflightd.schedulers import registry
from inflightd.schedulers.options import OptionError, OptionValue, parse_options

SWAP_LIMIT_S = 30.0  # a step may be a long one


@dataclass(frozen=True, slots=True)
class PolicyInUse:
    """options: all of them, the defaults included."""

    name: str
    options: dict[str, OptionValue]
    generation: int


def checked_options(name: str, options: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    """All options of policy `name`, the given ones parsed.  Raises `SwapRefused` (unknown, options)."""
    try:
        parsed = parse_options(registry.load(name).Options, options)
    except OptionError as error:
        raise SwapRefused("options", str(error)) from error
    except registry.PolicyLoadError as error:
        raise SwapRefused("unknown", str(error)) from error
    return asdict(parsed)


class Swaps:
    """Owns which policy is in use, as far as the engine has said."""

    def __init__(self, link: EngineLink) -> None:
        self._link = link
        self.configured = PolicyInUse(link.start.policy, dict(link.start.policy_options), link.start.generation)
        self.current = self.configured
        self._previous = self.configured
        self._last_ticket = 0
        # Sent and not answered: the options to commit, and who waits (who may have gone).
        self._sent: dict[int, tuple[dict[str, OptionValue], asyncio.Future[SwapDone]]] = {}

    @property
    def differs_from_config(self) -> bool:
        return (self.current.name, self.current.options) != (self.configured.name, self.configured.options)

    async def swap(self, name: str, options: Mapping[str, OptionValue], expected_generation: int | None) -> SwapDone:
        """Raises `SwapRefused`: nothing changed; or `Unavailable`: there is no engine that could say."""
        parsed = checked_options(name, options)
        if any(not answer.done() for _, answer in self._sent.values()):
            raise SwapRefused("busy", "another swap is under way")
        if expected_generation is not None and expected_generation != self.current.generation:
            raise SwapRefused("generation", f"expected {expected_generation}, it is {self.current.generation}")
        if self._link.state is not EngineState.READY:
            raise Unavailable(f"the engine is {self._link.state}")
        self._last_ticket += 1
        answer: asyncio.Future[SwapDone] = asyncio.get_running_loop().create_future()
        self._sent[self._last_ticket] = (parsed, answer)
        self._link.send(
            SwapPolicy(ticket=self._last_ticket, name=name, options=parsed, expected_generation=expected_generation)
        )
        try:
            done = await asyncio.wait_for(answer, SWAP_LIMIT_S)
        except TimeoutError:
            raise Unavailable(f"the engine did not answer within {SWAP_LIMIT_S:g} s") from None
        if done.error_rule:
            raise SwapRefused(done.error_rule, done.error)
        return done

    def on_ready(self, generation: int) -> None:
        """A new engine process runs under what was last committed."""
        start = self._link.start
        self.current = PolicyInUse(start.policy, dict(start.policy_options), generation)

    def on_done(self, done: SwapDone) -> None:
        """The engine has answered; what it did counts whether or not anybody still waits."""
        options, answer = self._sent.pop(done.ticket)
        if not done.error_rule:
            self._previous, self.current = self.current, PolicyInUse(done.name, options, done.generation)
            self._link.commit_policy(done.name, options, done.generation)
        if not answer.done():
            answer.set_result(done)

    def on_fault(self, fault: PolicyFault) -> None:
        """The engine went back to the policy before, or to its own `drain`."""
        back = self._previous if fault.replaced_by == self._previous.name else None
        in_use = PolicyInUse(fault.replaced_by, back.options if back else {}, fault.generation)
        self.current = in_use
        if back is not None:
            self._link.commit_policy(in_use.name, in_use.options, in_use.generation)

    def on_lost(self, detail: str) -> None:
        """The engine process is gone: whether a swap under way was made cannot matter any more."""
        sent, self._sent = self._sent, {}
        for _, answer in sent.values():
            if not answer.done():
                answer.set_exception(Unavailable(detail))
