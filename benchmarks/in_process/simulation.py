"""Runs in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks.in_process.hosts import Host
from benchmarks.in_process.runs import Run, serve
from benchmarks.in_process.traffic import Offer
from inflightd.daemon.clock import VirtualClock
from inflightd.daemon.core.loop import StepLoop
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.engines.scripted import ScriptedEngine, ScriptedOptions
from inflightd.schedulers.api import Limits, Policy, ServiceClass

_EOS, _WORD = 0, 1
DEFAULT_CLASSES: Final = (ServiceClass("default"),)


def simulate(
    policy: Policy,
    offers: Sequence[Offer],
    host: Host,
    *,
    users: int | None = None,
    classes: Sequence[ServiceClass] = DEFAULT_CLASSES,
) -> Run:
    """`serve` all offers on a new loop, whose cost model knows nothing yet, over a modelled host."""
    clock = VirtualClock()
    block = host.block_size_tokens
    options = ScriptedOptions(
        eos_token_ids=[_EOS], block_size_tokens=block, blocks_total=host.kv_tokens // block, cost=host.cost
    )
    limits = Limits(
        max_batch_size=host.max_batch_size,
        max_num_tokens=host.max_num_tokens,
        block_size_tokens=block,
        max_sequence_tokens=max(offer.prompt_tokens + (offer.max_tokens or offer.output_tokens) for offer in offers),
    )
    loop = StepLoop(
        ScriptedEngine(options, clock, _until_its_end, name="simulated"),
        policy,
        clock=clock,
        limits=limits,
        classes={service_class.name: service_class for service_class in classes},
        prefix_cache=host.prefix_cache,
    )
    return serve(loop, clock, offers, users=users)


def _until_its_end(sequence: int, state: SamplingState, position: int) -> int:
    """One word again and again, then the end token; the seed says how many tokens there are."""
    del sequence
    return _EOS if position + 1 == state.params.seed else _WORD
