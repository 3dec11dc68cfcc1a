"""What the books of the KV cache say and cost, on an engine that computes nothing.

Block sizes: a deep queue of requests on a pool of fixed size, in virtual time; read off once the pool has been full.
Prefix cache: the time from submit() to the end of the step that admits a prompt: digests, look-up, claim, and all else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import count
from random import Random
from typing import Final

from benchmarks.harness import Figure, progress
from benchmarks.in_process.traffic import Offer, conversations
from inflightd.daemon.clock import VirtualClock
from inflightd.daemon.core.loop import StepLoop
from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.wire import Submit
from inflightd.daemon.engines.scripted import ScriptedEngine, ScriptedOptions
from inflightd.schedulers.api import Limits, ServiceClass
from inflightd.schedulers.registry import build

BLOCK_SIZES_TOKENS: Final = (8, 16, 32, 64, 128)
POOL_TOKENS, REQUESTS, QUICK_REQUESTS, SAMPLE_STEPS = 1 << 16, 500, 200, 32
CHATS, AZURE = "short chats", "Azure conversations"
SHAREGPT_TOKENS: Final = (161, 338)  # mean prompt and output of ShareGPT in the vLLM paper (SOSP 2023)

PREFIX_LENGTHS_TOKENS: Final = (256, 1024, 2048)
PREFIX_ROUNDS, PREFIX_QUICK_ROUNDS, PREFIX_BLOCKS = 50, 20, 1024
_VOCAB_SIZE: Final = 1 << 20


def block_sizes(quick: bool) -> list[Figure]:
    """Empty room in held blocks, and sequences that run at a time, by block size and mix of lengths."""
    requests = QUICK_REQUESTS if quick else REQUESTS
    figures = []
    for mix, offers in {AZURE: conversations(requests), CHATS: _short_chats(requests)}.items():
        for size in BLOCK_SIZES_TOKENS:
            progress(f"blocks of {size} tokens, {mix}")
            empty, running = occupied(offers, size)
            figures.append(Figure(f"empty room in held blocks of {size} tokens, {mix}", "%", empty))
            figures.append(Figure(f"sequences at a time, blocks of {size} tokens, {mix}", "sequences", running))
    return figures


def prefix_costs(quick: bool) -> dict[int, Mapping[str, list[float]]]:
    """Prompt tokens -> kind (off, miss, hit) -> microseconds from submit() to the end of the step, a value a round."""
    costs = {}
    for length in PREFIX_LENGTHS_TOKENS:
        progress(f"admission of {length} tokens")
        costs[length] = _admissions(length, PREFIX_QUICK_ROUNDS if quick else PREFIX_ROUNDS)
    return costs


def _short_chats(requests: int) -> list[Offer]:
    """Exponential lengths with the means of ShareGPT."""
    random = Random(0)
    prompt, output = (1 / tokens for tokens in SHAREGPT_TOKENS)
    return [Offer(1 + int(random.expovariate(prompt)), 1 + int(random.expovariate(output))) for _ in range(requests)]


def occupied(offers: Sequence[Offer], block_size_tokens: int) -> tuple[list[float], list[float]]:
    """(percent empty, running) every SAMPLE_STEPS steps while somebody waits and somebody has ended."""
    longest = max(offer.prompt_tokens + offer.output_tokens for offer in offers)
    loop = _loop(
        "conservative-admission", POOL_TOKENS // block_size_tokens, block_size_tokens, longest, prefix_cache=False
    )
    for number, offer in enumerate(offers, start=1):
        _submit(loop, number, [0] * offer.prompt_tokens, offer.output_tokens)
    empty: list[float] = []
    running: list[float] = []
    while loop.has_work:
        frame, _ = loop.step()
        assert frame is not None
        state = frame.state
        if not state.waiting:
            break
        if state.finished and state.steps % SAMPLE_STEPS == 0:
            empty.append(100 * loop.kv_figures().internal_fragmentation)
            running.append(state.running)
    return empty, running


def _admissions(length: int, rounds: int) -> Mapping[str, list[float]]:
    numbers = count(1)
    without = _loop("throughput-max", PREFIX_BLOCKS, 32, 1 << 15, prefix_cache=False)
    cached = _loop("throughput-max", PREFIX_BLOCKS, 32, 1 << 15, prefix_cache=True)
    common = [_VOCAB_SIZE - 1] * length

    def admit(loop: StepLoop, prompt_ids: list[int]) -> float:
        begin = time.perf_counter()
        _submit(loop, next(numbers), prompt_ids, max_tokens=1)
        loop.step()
        return (time.perf_counter() - begin) * 1e6

    found: dict[str, list[float]] = {"off": [], "miss": [], "hit": []}
    for _ in range(rounds):
        admit(cached, common)  # again: others' blocks may have taken the place of its blocks
        for kind, loop in (("off", without), ("miss", cached), ("hit", cached)):
            prompt_ids = common if kind == "hit" else [next(numbers) % _VOCAB_SIZE] * length
            before = loop.state().cached_prompt_tokens
            found[kind].append(admit(loop, prompt_ids))
            assert (loop.state().cached_prompt_tokens > before) == (kind == "hit")
    return found


def _loop(policy: str, blocks: int, block_size_tokens: int, longest_tokens: int, *, prefix_cache: bool) -> StepLoop:
    clock = VirtualClock()
    options = ScriptedOptions(
        script="silent", vocab_size=_VOCAB_SIZE, block_size_tokens=block_size_tokens, blocks_total=blocks
    )
    limits = Limits(
        max_batch_size=1024,
        max_num_tokens=8192,
        block_size_tokens=block_size_tokens,
        max_sequence_tokens=longest_tokens,
    )
    return StepLoop(
        ScriptedEngine(options, clock),
        build(policy),
        clock=clock,
        limits=limits,
        classes={"default": ServiceClass("default")},
        prefix_cache=prefix_cache,
    )


def _submit(loop: StepLoop, number: int, prompt_ids: list[int], max_tokens: int) -> None:
    sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=max_tokens, ignore_eos=True)
    loop.submit(
        Submit(number=number, prompt_ids=prompt_ids, sampling=sampling, service_class="default", arrival_ns=number)
    )
