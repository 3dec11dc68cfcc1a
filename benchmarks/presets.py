"""What each file of examples/presets is worth, in virtual time: its load under it and under the default configuration.

Scheduler, options, classes and limits are those that the daemon would send to its engine process for that file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.charts import Chart, distribution
from benchmarks.harness import Figure, Goal, Result, main, progress
from benchmarks.in_process.hosts import A100, TWO_CORES, Host
from benchmarks.in_process.runs import Run
from benchmarks.in_process.simulation import simulate
from benchmarks.in_process.traffic import Offer, arriving, conversations
from inflightd.daemon.config import Config, load_config
from inflightd.daemon.engines.step_cost import StepCost
from inflightd.daemon.front.starting import start_message
from inflightd.schedulers.api import ServiceClass
from inflightd.schedulers.registry import build

NAME: Final = "presets"
FOLDER: Final = Path(__file__).parents[1] / "examples" / "presets"
# The pool that the engine takes when no size is given: this much for each slot, but not all memory.
SLOT_TOKENS, MOST_KV_TOKENS = 2048, 200_000
SEEDS: Final = (0, 1, 2)

CHATS, CHATS_PER_S, CHAT_TOKENS = 400, 1.3, 1500
DOCUMENT_TOKENS, SUMMARY_TOKENS, DOCUMENT_EVERY_S = 4000, 150, 10.0
TTFT_S, TPOT_MS = 2.0, 60.0
SUMMARIES = 600
SHARERS, SHARER_USERS, SYSTEM_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 256, 64, 2048, 64, 32

IN_TIME = f"chats with TTFT <= {TTFT_S:g} s and TPOT <= {TPOT_MS:g} ms"
TPOT = "interactive.toml: p99 TPOT of chats, preset"
ITL_RATIO = "interactive.toml: p99 ITL of chats, preset / default"
GOODPUT_RATIO = f"interactive.toml: {IN_TIME}, preset / default"
BATCH_RATIO = "batch.toml: tokens/s on two cores, preset / default"
BATCH_GPU_RATIO = "batch.toml: tokens/s on the A100 model, preset / default"
PREFIX_RATIO = "shared-prefix.toml: mean TTFT, preset / default"
UNCACHED_RATIO = "shared-prefix.toml: tokens/s, preset / default without prefix cache"
GOALS: Final = (
    Goal(TPOT, "<=", TPOT_MS),
    Goal(ITL_RATIO, "<=", 0.33),
    Goal(GOODPUT_RATIO, ">=", 1.1),
    Goal(BATCH_RATIO, ">=", 1.05),
    Goal(BATCH_GPU_RATIO, ">=", 1.2),
    Goal(PREFIX_RATIO, "<=", 0.5),
    Goal(UNCACHED_RATIO, ">=", 3),
)


def preset(name: str) -> Config:
    return load_config(FOLDER / f"{name}.toml", {}, {})


def run_under(config: Config, offers: Sequence[Offer], *, cost: StepCost = TWO_CORES, users: int | None = None) -> Run:
    """Serve `offers` as the daemon would with `config`; a class that it does not have gets no promise."""
    start = start_message(config, "", "", "json")
    classes = {
        settings.name: ServiceClass(**{name: getattr(settings, name) for name in settings.__struct_fields__})
        for settings in start.classes
    }
    for offer in offers:
        classes.setdefault(offer.service_class, ServiceClass(offer.service_class))
    host = Host(
        cost,
        kv_tokens=min(start.limits.max_batch_size * SLOT_TOKENS, MOST_KV_TOKENS),
        max_batch_size=start.limits.max_batch_size,
        max_num_tokens=start.limits.max_num_tokens,
        prefix_cache=start.kv.prefix_cache,
    )
    policy = build(config.scheduler, config.scheduler_options)
    return simulate(policy, offers, host, users=users, classes=tuple(classes.values()))


def run(quick: bool) -> Result:
    seeds = SEEDS[:1] if quick else SEEDS
    progress("interactive.toml")
    chats = [(run_under(preset("interactive"), load), run_under(Config(), load)) for load in map(chat_load, seeds)]
    progress("batch.toml")
    figures = [*_interactive_figures(chats), *_batch_figures(seeds)]
    progress("shared-prefix.toml")
    figures += _prefix_figures()
    setting = {
        "engine": "models of SmolLM2-135M on two cores and of Llama-3-8B on one A100, virtual time",
        "interactive.toml": f"{CHATS} chats of Azure's conversation trace up to {CHAT_TOKENS} tokens, "
        f"{CHATS_PER_S:g} a second, Poisson, and a document of {DOCUMENT_TOKENS} tokens every {DOCUMENT_EVERY_S:g} s",
        "batch.toml": f"{SUMMARIES} requests with lengths of that trace, all at once",
        "shared-prefix.toml": f"{SHARERS} requests, {SHARER_USERS} at a time: {SYSTEM_TOKENS} common and "
        f"{QUESTION_TOKENS} own prompt tokens, {ANSWER_TOKENS} out",
    }
    return Result(figures, setting, (_interactive_chart(chats),))


def chat_load(seed: int) -> list[Offer]:
    """Chats, and in the class `background` a long document at even times."""
    chats = arriving(conversations(CHATS, seed=seed, longest_tokens=CHAT_TOKENS), CHATS_PER_S, seed=seed)
    documents = [
        Offer(DOCUMENT_TOKENS, SUMMARY_TOKENS, arrival_s=DOCUMENT_EVERY_S * number, service_class="background")
        for number in range(1, int(chats[-1].arrival_s / DOCUMENT_EVERY_S))
    ]
    return sorted([*chats, *documents], key=lambda offer: offer.arrival_s)


def _interactive_figures(runs: Sequence[tuple[Run, Run]]) -> Iterator[Figure]:
    yield Figure(ITL_RATIO, "x", [ours.itl_ms(99, "default") / plain.itl_ms(99, "default") for ours, plain in runs])
    yield Figure(GOODPUT_RATIO, "x", [in_time(ours) / in_time(plain) for ours, plain in runs])
    for at, label in enumerate(("preset", "default")):
        each = [pair[at] for pair in runs]
        name = f"interactive.toml: {{}}, {label}"
        yield Figure(name.format(IN_TIME), "%", [100 * in_time(one) for one in each])
        yield Figure(name.format("p99 TPOT of chats"), "ms", [one.tpot_ms(99, "default") for one in each])
        yield Figure(name.format("p99 ITL of chats"), "ms", [one.itl_ms(99, "default") for one in each])
        yield Figure(name.format("p99 TTFT of chats"), "s", [one.ttft_s(99, "default") for one in each])
        yield Figure(name.format("p99 TTFT of documents"), "s", [one.ttft_s(99, "background") for one in each])
        yield Figure(name.format("tokens/s"), "tokens/s", [one.tokens_per_s for one in each])


def in_time(run: Run) -> float:
    """The fraction of all chats offered that had their first token and their time per token in time."""
    chats = run.of_class("default")
    good = sum(each.ttft_ns <= TTFT_S * 1e9 and each.tpot_ns <= TPOT_MS * 1e6 for each in chats)
    return good / len(chats)


def _interactive_chart(runs: Sequence[tuple[Run, Run]]) -> Chart:
    lines = {
        label: distribution([gap_ms for pair in runs for gap_ms in pair[at].gaps_ms("default")])
        for at, label in enumerate(("interactive.toml", "default configuration"))
    }
    title = "Gaps between tokens of chats while long documents arrive, two-core model"
    return Chart("preset_interactive", title, "inter-token latency, ms", "% of gaps at or below", lines, log_x=True)


def _batch_figures(seeds: Sequence[int]) -> Iterator[Figure]:
    for name, cost in ((BATCH_RATIO, TWO_CORES), (BATCH_GPU_RATIO, A100)):
        found = []
        for seed in seeds:
            load = conversations(SUMMARIES, seed=seed)
            ours, plain = (run_under(config, load, cost=cost) for config in (preset("batch"), Config()))
            found.append((ours.tokens_per_s, plain.tokens_per_s))
        yield Figure(name, "x", [ours / plain for ours, plain in found])
        yield Figure(name.replace(" / default", ""), "tokens/s", [ours for ours, _ in found])


def _prefix_figures() -> Iterator[Figure]:
    offers = [Offer(SYSTEM_TOKENS + QUESTION_TOKENS, ANSWER_TOKENS, prefix_tokens=SYSTEM_TOKENS)] * SHARERS
    sides = {
        "preset": preset("shared-prefix"),
        "default": Config(),
        "default without prefix cache": load_config(None, {}, {"engine": "scripted", "prefix_cache": False}),
    }
    runs = {label: run_under(config, offers, users=SHARER_USERS) for label, config in sides.items()}
    yield Figure(PREFIX_RATIO, "x", [runs["preset"].mean_ttft_s() / runs["default"].mean_ttft_s()])
    plain = runs["default without prefix cache"]
    yield Figure(UNCACHED_RATIO, "x", [runs["preset"].tokens_per_s / plain.tokens_per_s])
    for label, one in runs.items():
        yield Figure(f"shared-prefix.toml: mean TTFT, {label}", "s", [one.mean_ttft_s()])
        yield Figure(f"shared-prefix.toml: tokens/s, {label}", "tokens/s", [one.tokens_per_s])


if __name__ == "__main__":
    main(NAME, GOALS, run)
