"""The scenes: a few requests on the real loop and policies, and what is read off the step records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from string import ascii_uppercase
from typing import Final

from benchmarks.in_process.first_chunk import FirstChunk
from examples.concepts.recorder import Recorder, Request, Setting
from inflightd.profiling.pool import draw_pools
from inflightd.profiling.timeline import CellKind, draw_timelines
from inflightd.schedulers.options import OptionValue
from inflightd.schedulers.registry import build

COMPUTED: Final = (CellKind.PREFILL, CellKind.RECOMPUTE, CellKind.DECODE, CellKind.PADDING)


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture, and the table beside it: the first row holds the headings."""

    svg: str
    table: Sequence[Sequence[str]]


def record(policy: str, options: Mapping[str, OptionValue], setting: Setting, requests: Sequence[Request]) -> Recorder:
    """`requests` from start to end under an installed policy."""
    recorder = Recorder(build(policy, options), setting)
    recorder.run(requests)
    return recorder


def prompt(name: str, tokens: int) -> range:
    """Token ids of a prompt that begins as no other does."""
    start = 100 * ascii_uppercase.index(name)
    return range(start, start + tokens)


def ms(duration_ns: float) -> str:
    return f"{duration_ns / 1e6:.0f}"


def largest_gap_ns(recorder: Recorder, name: str) -> int:
    """The largest inter-token latency of a stream."""
    return max(later - earlier for earlier, later in pairwise(recorder.token_ns[name]))


def batching() -> Scene:
    """The same eight requests in static batches, in request-level dynamic batches and in flight."""
    outputs = (3, 12, 5, 8, 4, 10, 3, 6)
    requests = [
        Request(name, prompt(name, 32), tokens, at_ms=12.0 * index)
        for index, (name, tokens) in enumerate(zip(ascii_uppercase, outputs, strict=False))
    ]
    setting = Setting(max_batch_size=4)
    runs = {
        "static batches of 4: wait until the batch is full": record(
            "static-batch", {"slots": 4, "max_queue_delay_ms": 1000.0}, setting, requests
        ),
        "request-level dynamic batches: wait at most 20 ms": record(
            "static-batch", {"slots": 4, "max_queue_delay_ms": 20.0}, setting, requests
        ),
        "in flight": record("throughput-max", {}, setting, requests),
    }
    table = [["", "steps", "rows computed", "of them padding", "mean time of a request, ms", "last one ends, ms"]]
    for caption, run in runs.items():
        cells = [cell for step in run.steps for cell in step.cells.values() if cell.kind in COMPUTED]
        padding = sum(cell.kind is CellKind.PADDING for cell in cells)
        times_ns = [run.token_ns[request.name][-1] - request.at_ms * 1e6 for request in requests]
        table.append(
            [
                caption.split(":")[0],
                str(len(run.records)),
                str(len(cells)),
                f"{padding} ({100 * padding / len(cells):.0f} %)",
                ms(sum(times_ns) / len(times_ns)),
                ms(run.records[-1].end_ns),
            ]
        )
    timelines = [run.timeline(caption) for caption, run in runs.items()]
    return Scene(draw_timelines("Static, dynamic and in-flight batching", timelines), table)


def chunked_prefill() -> Scene:
    """Three streams, and a long prompt that arrives beside them."""
    requests = [Request(name, prompt(name, 32), 30) for name in "ABC"]
    requests.append(Request("D", prompt("D", 600), 8, at_ms=60))
    runs = {
        "whole prompt in one step (throughput-max)": record("throughput-max", {}, Setting(), requests),
        "chunks of 256 (latency-guarantee)": record("latency-guarantee", {"chunk_tokens": 256}, Setting(), requests),
        "chunks of 64 (latency-guarantee, chunk_tokens=64)": record(
            "latency-guarantee", {"chunk_tokens": 64}, Setting(), requests
        ),
    }
    table = [["", "largest gap in stream A, ms", "D's first token after, ms", "last token, ms"]]
    for caption, run in runs.items():
        first_ns = run.token_ns["D"][0] - 60e6
        table.append([caption, ms(largest_gap_ns(run, "A")), ms(first_ns), ms(run.records[-1].end_ns)])
    timelines = [run.timeline(caption) for caption, run in runs.items()]
    return Scene(draw_timelines("A long prompt beside three streams", timelines), table)


def paged() -> Scene:
    """Three sequences in a pool, and how much of their blocks is empty, by block size."""
    requests = [Request(name, prompt(name, tokens), 30) for name, tokens in (("A", 40), ("B", 100), ("C", 10))]
    recorder = Recorder(build("throughput-max"), Setting(blocks=18))
    recorder.run(requests, 1)
    pools = [recorder.pool("after step 1: the prompts of 40, 100 and 10 tokens have been computed")]
    recorder.run(most_steps=9)
    pools.append(
        recorder.pool("after step 10: each has generated 10 tokens; where the last block was full, one was added")
    )
    table = [["block size, tokens", "blocks held", "tokens held", "room in them, tokens", "empty"]]
    for size_tokens in (8, 16, 32, 64):
        other = Recorder(build("throughput-max"), Setting(blocks=4096 // size_tokens, block_size_tokens=size_tokens))
        other.run(requests, 10)
        figures = other.loop.kv_figures()
        room, held = figures.token_slots_held, figures.tokens_held
        empty = f"{100 * (room - held) / room:.0f} %"
        table.append([str(size_tokens), str(figures.blocks_held), str(held), str(room), empty])
    return Scene(draw_pools("Block tables in a paged KV cache", pools), table)


def prefix() -> Scene:
    """Two prompts with one beginning, at the same time and one after the other."""
    system = prompt("Z", 40)
    setting = Setting(blocks=18)
    recorder = Recorder(build("throughput-max"), setting)
    requests = [
        Request("A", [*system, *prompt("A", 16)], 12),
        Request("B", [*system, *prompt("B", 30)], 12),
        Request("C", [*system, *prompt("C", 10)], 12),
    ]
    recorder.run(requests[:1], 1)
    recorder.run(requests[1:2], 1)
    pools = [recorder.pool("step 2: B has started with two blocks of A, which hold their common beginning")]
    recorder.run()
    pools.append(recorder.pool(f"step {len(recorder.steps)}: both have ended, their full blocks are still found"))
    recorder.run(requests[2:], 1)
    pools.append(recorder.pool(f"step {len(recorder.steps)}: C starts with blocks that nobody held"))
    recorder.run()
    table = [["", "prompt tokens", "found in the cache", "computed"]]
    for request in requests:
        prompt_tokens, cached_tokens = len(request.prompt_ids), recorder.cached_tokens[request.name]
        table.append([request.name, str(prompt_tokens), str(cached_tokens), str(prompt_tokens - cached_tokens)])
    return Scene(draw_pools("Prefix sharing", pools), table)


def preemption() -> Scene:
    """Four sequences outgrow their pool; the same run with and without host memory to swap to."""
    requests = [Request(name, prompt(name, 60), 40) for name in "ABCD"]
    setting = Setting(blocks=20, prefix_cache=False, past_outputs_tokens=10)
    runs = {
        "by recompute": record("throughput-max", {}, setting, requests),
        "by swap": record("throughput-max", {"preemption": "swap"}, replace(setting, host_blocks=20), requests),
    }
    table = [["", "preemptions", "tokens prefilled again", "blocks swapped out", "swapped in", "all done after, ms"]]
    for caption, run in runs.items():
        table.append(
            [
                caption,
                str(sum(record.preemptions_recompute + record.preemptions_swap for record in run.records)),
                str(sum(record.recomputed_tokens for record in run.records)),
                str(sum(record.swapped_out_blocks for record in run.records)),
                str(sum(record.swapped_in_blocks for record in run.records)),
                ms(run.records[-1].end_ns),
            ]
        )
    timelines = [run.timeline(caption) for caption, run in runs.items()]
    return Scene(draw_timelines("Preemption by recompute and by swap", timelines), table)


def samples() -> Scene:
    """Three samples of one prompt share its full blocks; the partial last one is copied for each."""
    recorder = Recorder(build("throughput-max"), Setting(blocks=18))
    recorder.run([Request("A", prompt("A", 40), 30, n=3)], 1)
    pools = [recorder.pool("after step 1: the prompt of 40 tokens is there, and two samples have split off")]
    recorder.run(most_steps=11)
    pools.append(recorder.pool("after step 12: each has generated tokens of its own"))
    table = [["", "blocks held after step 12"]]
    table.append(["three samples of one request", str(recorder.loop.kv_figures().blocks_held)])
    apart = Recorder(build("throughput-max"), Setting(blocks=18))
    apart.run([Request(name, prompt(name, 40), 30) for name in "ABC"], 12)
    table.append(["three requests with other prompts of that length", str(apart.loop.kv_figures().blocks_held)])
    return Scene(draw_pools("Copy on write with three samples", pools), table)


def pressure() -> Scene:
    """More work than the pool holds, under three rules of admission."""
    requests = [Request(name, prompt(name, 96), 80) for name in "ABCDEF"]
    setting = Setting(blocks=28, max_num_tokens=64, prefix_cache=False, past_outputs_tokens=40)
    first_chunk = Recorder(FirstChunk(), setting)
    first_chunk.run(requests)
    runs = {
        "by first chunk (benchmarks/in_process/first_chunk.py)": first_chunk,
        "by whole prompt and expected output (throughput-max)": record("throughput-max", {}, setting, requests),
        "prompt and max_tokens reserved (conservative-admission)": record(
            "conservative-admission", {}, setting, requests
        ),
    }
    table = [["admission", "preemptions", "tokens prefilled", "of them again", "all done after, ms"]]
    for caption, run in runs.items():
        totals = run.loop.totals
        table.append(
            [
                caption,
                str(run.loop.roster.moves.preemptions),
                str(totals.prefilled_tokens),
                f"{totals.recomputed_tokens} ({100 * totals.recomputed_tokens / totals.prefilled_tokens:.0f} %)",
                ms(run.records[-1].end_ns),
            ]
        )
    timelines = [run.timeline(caption) for caption, run in runs.items()]
    return Scene(draw_timelines("Admission under KV pressure", timelines), table)


SCENES: Final[Mapping[str, Callable[[], Scene]]] = {
    "batching": batching,
    "chunked_prefill": chunked_prefill,
    "paged": paged,
    "prefix": prefix,
    "samples": samples,
    "preemption": preemption,
    "pressure": pressure,
}
