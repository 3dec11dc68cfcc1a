"""Policy swaps: rehearsed in a child process, made by the engine between two steps, one at a time."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from inflightd.daemon.core.drain import Drain
from inflightd.daemon.core.wire import PolicyFault, SnapshotTaken, SwapDone, SwapPolicy, TakeSnapshot
from inflightd.daemon.errors import SwapRefused, Unavailable
from inflightd.daemon.front.engine_events import EngineState
from inflightd.daemon.front.engine_link import EngineLink
from inflightd.daemon.front.policies import PolicyInUse, is_own, parsed_options
from inflightd.daemon.rehearsal.messages import Job, Report
from inflightd.daemon.rehearsal.process import rehearse
from inflightd.schedulers import registry
from inflightd.schedulers.options import OptionValue

ENGINE_LIMIT_S: Final = 20.0  # for each answer of the engine: a step may be a long one
_REMEMBERED: Final = 8  # policies that a restarted engine may go back to

_Answer = TypeVar("_Answer", SnapshotTaken, SwapDone)


@dataclass(frozen=True, slots=True)
class Swapped:
    """A swap that was made, and what it took."""

    done: SwapDone
    rehearsal: Report
    snapshot_ns: int  # no step could begin for so long


class Swaps:
    """Owns which policy is in use, as far as the engine has said, and which ones have not failed."""

    def __init__(self, link: EngineLink, configured: PolicyInUse) -> None:
        self._link = link
        self.configured = configured
        self.current = configured
        self._before: PolicyInUse | None = None  # what the engine goes back to if the current one fails; None: to drain
        self._good = [configured]  # in use now or before, and not known to have failed; the last one is the latest
        self._under_way = asyncio.Lock()
        self._last_ticket = 0
        # Asked and not answered; who waits may have gone.
        self._snapshots: dict[int, asyncio.Future[SnapshotTaken]] = {}
        self._sent: dict[int, tuple[PolicyInUse, asyncio.Future[SwapDone]]] = {}

    @property
    def differs_from_config(self) -> bool:
        current, configured = self.current, self.configured
        return (current.reference, current.options) != (configured.reference, configured.options)

    async def swap(
        self,
        policy: str,
        options: Mapping[str, OptionValue],
        expected_generation: int | None = None,
        *,
        from_config: bool = False,
    ) -> Swapped:
        """Put `policy` in charge if it stands its rehearsal.

        from_config: the configuration asks: "module:Class" may be named, and a swap under way is waited for.
        Raises `SwapRefused`: nothing changed; or `Unavailable`: there is no engine that could say.
        """
        if registry.is_reference(policy) and not from_config:
            reason = "a class can be named only on the command line and in the configuration file"
            raise SwapRefused("unknown", f"{policy!r} is not the name of an installed policy; {reason}")
        if self._under_way.locked() and not from_config:  # (one that the engine still builds, it refuses itself)
            raise SwapRefused("busy", "another swap is under way")
        async with self._under_way:
            if expected_generation is not None and expected_generation != self.current.generation:
                raise SwapRefused("generation", f"expected {expected_generation}, it is {self.current.generation}")
            await asyncio.to_thread(registry.refresh)  # it may have been installed a moment ago
            if is_own(policy):
                options = parsed_options(policy, options)
            snapshot = await self._snapshot()
            link = self._link
            rehearsal = await rehearse(
                Job(
                    policy=policy,
                    options=dict(options),
                    snapshot=snapshot.snapshot,
                    plan_limit_ns=link.start.plan_limit_ns,
                )
            )
            done = await self._commit(policy, rehearsal, expected_generation)
            return Swapped(done, rehearsal, snapshot.taken_ns)

    async def _snapshot(self) -> SnapshotTaken:
        ticket = self._new_ticket()
        answer: asyncio.Future[SnapshotTaken] = asyncio.get_running_loop().create_future()
        self._snapshots[ticket] = answer
        self._link.send(TakeSnapshot(ticket))
        return await _answered(answer)

    async def _commit(self, policy: str, rehearsal: Report, expected_generation: int | None) -> SwapDone:
        ticket = self._new_ticket()
        answer: asyncio.Future[SwapDone] = asyncio.get_running_loop().create_future()
        self._sent[ticket] = (PolicyInUse(rehearsal.name, rehearsal.options, 0, policy), answer)
        self._link.send(
            SwapPolicy(ticket=ticket, policy=policy, options=rehearsal.options, expected_generation=expected_generation)
        )
        done = await _answered(answer)
        if done.error_rule:
            raise SwapRefused(done.error_rule, done.error)
        return done

    def _new_ticket(self) -> int:
        if self._link.state is not EngineState.READY:
            raise Unavailable(f"the engine is {self._link.state}")
        self._last_ticket += 1
        return self._last_ticket

    # --- what the engine says

    def on_ready(self, generation: int) -> None:
        """A new engine process runs under what was last committed."""
        self._before = None
        start = self._link.start
        if start.policy == Drain.name:
            self._use_drain(generation)
        else:
            self.current = dataclasses.replace(self._good[-1], generation=generation)

    def on_snapshot(self, taken: SnapshotTaken) -> None:
        answer = self._snapshots.pop(taken.ticket)
        if not answer.done():
            answer.set_result(taken)

    def on_done(self, done: SwapDone) -> None:
        """The engine has answered; what it did counts whether or not anybody still waits."""
        policy, answer = self._sent.pop(done.ticket)
        if not done.error_rule:
            self._before = self.current
            self.current = dataclasses.replace(policy, generation=done.generation)
            self._good = [*self._without(self.current), self.current][-_REMEMBERED:]
            self._commit_good(done.generation)
        if not answer.done():
            answer.set_result(done)

    def on_fault(self, fault: PolicyFault) -> None:
        """The engine went back to the policy before, or to its own `drain`.

        A restarted engine goes on under the latest one that has not failed, as a generation of its own.
        """
        self._good = self._without(self.current)
        if fault.replaced_by == Drain.name:
            self._before = None
            self._use_drain(fault.generation)
            self._commit_good(fault.generation + bool(self._good))
            return
        failed, before = self.current, self._before or self.current
        self._before = None
        self.current = dataclasses.replace(before, generation=fault.generation)
        if (before.reference, before.options) != (failed.reference, failed.options):
            self._good = [*self._without(before), self.current]
        self._commit_good(fault.generation)

    def on_load_failed(self) -> bool:
        """A new engine process could not build its policy; False if there is no other that it could begin with."""
        if self._link.start.generation == 0 or not self._good:
            return False
        self._good.pop()
        self._commit_good(self._link.start.generation + 1)
        return True

    def on_lost(self, detail: str) -> None:
        """The engine process is gone: whether a swap under way was made cannot matter any more."""
        waited_for: list[asyncio.Future[SnapshotTaken] | asyncio.Future[SwapDone]] = [*self._snapshots.values()]
        waited_for += [answer for _, answer in self._sent.values()]
        self._snapshots.clear()
        self._sent.clear()
        for answer in waited_for:
            if not answer.done():
                answer.set_exception(Unavailable(detail))

    def _without(self, policy: PolicyInUse) -> list[PolicyInUse]:
        which = (policy.reference, policy.options)
        return [good for good in self._good if (good.reference, good.options) != which]

    def _use_drain(self, generation: int) -> None:
        self.current = PolicyInUse(Drain.name, {}, generation, Drain.name)

    def _commit_good(self, generation: int) -> None:
        if self._good:
            self._link.commit_policy(self._good[-1].reference, self._good[-1].options, generation)
        else:
            self._link.commit_policy(Drain.name, {}, generation)


async def _answered(answer: asyncio.Future[_Answer]) -> _Answer:
    try:
        return await asyncio.wait_for(answer, ENGINE_LIMIT_S)
    except TimeoutError:
        raise Unavailable(f"the engine did not answer within {ENGINE_LIMIT_S:g} s") from None
