"""A step loop in a scene that stays as it is: so many run, so many wait, and the first in line does not fit.

The real loop, block manager and policies on the scripted engine.  All streams decode and one in 32 takes a block in
each step; blocks that nobody owns stand in for streams that end, so that as many become free as decodes take.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import median
from typing import Final

from inflightd.daemon.clock import VirtualClock
from inflightd.daemon.core.loop import StepLoop
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.wire import Cancel, Submit
from inflightd.daemon.engines.api import EngineInfo, StepBatch, StepResult
from inflightd.daemon.engines.scripted import ScriptedEngine, ScriptedOptions
from inflightd.daemon.engines.step_cost import StepCost
from inflightd.schedulers.api import Limits, Policy, ServiceClass
from inflightd.schedulers.conservative_admission import ConservativeAdmission
from inflightd.schedulers.fit import growth_blocks
from inflightd.schedulers.registry import build

BLOCK_TOKENS, TENANTS = 32, 64
HEAD_TOKENS: Final = 2_400  # prompt of each that waits: 75 blocks, more than the room there is
ROOM_BLOCKS: Final = 60  # free besides what a policy keeps for those that run
PROMPT_TOKENS, MAX_TOKENS = 256, 4_096  # of those that run
OUTPUT_TOKENS: Final = (100, 1_000)  # recent outputs, for the policies that predict
LEARNING_STEPS: Final = 40  # steps with a prompt, after which the cost model is sure
STEP_COST: Final = StepCost(fixed_ns=5e6, prefill_token_ns=20e3, decode_ns=10e3, context_token_ns=10.0)  # a GPU's

# All that run are of the first class: nobody who waits may evict them.
CLASSES: Final = (
    ServiceClass("interactive", priority=1, ttft_ns=1_000_000_000, itl_ns=50_000_000),
    ServiceClass("standard"),
    ServiceClass("batch", priority=-1),
)


class TimedEngine:
    """The scripted engine, and how much CPU time it took."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self.info: EngineInfo = engine.info
        self.cpu_ns = 0

    def start(self, batch: StepBatch) -> None:
        began_ns = time.process_time_ns()
        self._engine.start(batch)
        self.cpu_ns += time.process_time_ns() - began_ns

    def finish(self) -> StepResult:
        began_ns = time.process_time_ns()
        result = self._engine.finish()
        self.cpu_ns += time.process_time_ns() - began_ns
        return result

    def close(self) -> None:
        self._engine.close()


def clock_cost_ns() -> float:
    """What reading the CPU clock takes, which is as much as a hundred lines of Python."""
    readings = [time.process_time_ns() for _ in range(20_001)]
    return median(later - earlier for earlier, later in pairwise(readings))


@dataclass(slots=True)
class Measured:
    """CPU time."""

    step_us: float  # of the loop around the engine, per step
    command_pair_us: float  # one request that arrives and one that is cancelled


class Scene:
    """A loop with so many running and waiting, in a state that stays as it is however many steps are done."""

    def __init__(self, running: int, waiting: int) -> None:
        self.running, self.waiting = running, waiting
        life_blocks = -(-(PROMPT_TOKENS + BLOCK_TOKENS + MAX_TOKENS) // BLOCK_TOKENS)
        options = ScriptedOptions(
            script="silent",
            context_tokens=PROMPT_TOKENS + BLOCK_TOKENS + MAX_TOKENS,
            block_size_tokens=BLOCK_TOKENS,
            blocks_total=running * life_blocks + ROOM_BLOCKS,
            cost=STEP_COST,
        )
        self._clock = VirtualClock()
        self._engine = TimedEngine(ScriptedEngine(options, self._clock))
        limits = Limits(
            max_batch_size=running + 8,
            max_num_tokens=8192,
            block_size_tokens=BLOCK_TOKENS,
            max_sequence_tokens=options.context_tokens,
        )
        self.loop = StepLoop(
            self._engine,
            build("throughput-max", {}),
            clock=self._clock,
            limits=limits,
            classes={service_class.name: service_class for service_class in CLASSES},
        )
        self._draw = Random(running * 100_003 + waiting)
        self._number = 0
        self._numbers: list[int] = []
        self._turnover_due = 0.0
        self._turned = 0  # requests that arrived, and as many that were cancelled
        self._ballast: list[int] = []  # numbers under which a block each is held
        self._head_prompt = [self._draw.randrange(512) for _ in range(HEAD_TOKENS)]
        self._clock_cost_ns = clock_cost_ns()
        for index in range(max(running, LEARNING_STEPS)):  # one a step; the block's edge comes for each at another time
            tokens = PROMPT_TOKENS + 2 * index % BLOCK_TOKENS
            prompt_ids = [self._draw.randrange(512) for _ in range(tokens)]
            self._submit(prompt_ids, CLASSES[0].name, MAX_TOKENS if index < running else 1)
            self.loop.step()
        self.loop.step()
        for _ in range(256):
            self.loop.roster.outputs.add(self._draw.randint(*OUTPUT_TOKENS))
        self.settle()
        for _ in range(waiting):
            self._arrive()

    def use(self, policy: Policy) -> None:
        """Let `policy` plan from now on, with the free blocks that make the first in line wait under it."""
        self.loop.use_policy(0, policy)
        self.settle()
        gc.freeze()  # the blocks that nobody owns are objects that no daemon has: let no collection walk over them

    def measure(self, steps: int, turnover: float) -> Measured:
        """`turnover` requests arrive and as many are cancelled before each step, on average."""
        loop, engine, clock_ns = self.loop, self._engine, time.process_time_ns
        loop_ns = commands_ns = 0
        engine.cpu_ns = 0
        turned_before = self._turned
        for _ in range(steps):
            began_ns = clock_ns()
            self.turn_over(turnover)
            turned_ns = clock_ns()
            loop.step()
            loop_ns += clock_ns() - turned_ns
            commands_ns += turned_ns - began_ns
            self.settle()
        self._check()
        # Each interval holds one reading of the clock: the step's, and the two pairs around the engine another four.
        loop_ns -= engine.cpu_ns + int(steps * 3 * self._clock_cost_ns)
        commands_ns -= int(steps * self._clock_cost_ns)
        return Measured(loop_ns / steps / 1e3, commands_ns / max(1, self._turned - turned_before) / 1e3)

    def turn_over(self, requests: float) -> None:
        """As many arrive as are cancelled; what is less than one counts for the next time."""
        if not self.waiting:
            return
        whole, self._turnover_due = divmod(self._turnover_due + requests, 1)
        self._turned += int(whole)
        for _ in range(int(whole)):
            self._arrive()
        for _ in range(int(whole)):
            place = self._draw.randrange(len(self._numbers))
            number, self._numbers[place] = self._numbers[place], self._numbers[-1]
            self._numbers.pop()
            self.loop.cancel(Cancel(number, "cancelled"))

    def _arrive(self) -> None:
        self._submit(self._head_prompt, self._draw.choice(CLASSES).name, 64)
        self._numbers.append(self._number)

    def _submit(self, prompt_ids: list[int], class_name: str, max_tokens: int) -> None:
        self._number += 1
        now_ns = self._clock.now_ns()
        self.loop.submit(
            Submit(
                number=self._number,
                prompt_ids=prompt_ids,
                sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=self._number, ignore_eos=True),
                service_class=class_name,
                tenant=f"tenant {self._draw.randrange(TENANTS)}",
                arrival_ns=now_ns,
                deadline_ns=now_ns + self._draw.randrange(1, 600) * 10**9 if self._number % 2 else None,
            )
        )

    def settle(self) -> None:
        """Hold or let go of blocks until as many are free as the policy needs for those that run, and some."""
        roster, kv = self.loop.roster, self.loop.roster.kv
        free_blocks = self.running + ROOM_BLOCKS
        policy = self.loop.policies.current
        if isinstance(policy, ConservativeAdmission):
            free_blocks = ROOM_BLOCKS
            if policy.options.mode == "reserve":
                free_blocks += sum(growth_blocks(sequence, BLOCK_TOKENS) for sequence in roster.running)
        while kv.free_blocks > free_blocks:
            number = -1 - len(self._ballast)
            kv.grow(number, 0, 1)
            self._ballast.append(number)
        while kv.free_blocks < free_blocks and self._ballast:
            kv.free(self._ballast.pop())

    def _check(self) -> None:
        """Raises RuntimeError if the scene is not the one it should be."""
        state = self.loop.state()
        if (state.running, state.waiting, state.preempted) != (self.running, self.waiting, 0):
            raise RuntimeError(f"{state} with {self.running} running and {self.waiting} waiting to be measured")
