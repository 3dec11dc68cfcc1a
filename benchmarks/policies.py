"""What the policies promise, in virtual time: exact counts over a modelled host, the same on every machine.

The real step loop, block manager, learned cost model and policies run; only the engine is a model, of `hosts.py`.
Three questions, each with its load and its goals in a file of its own: `kv_sweep`, `over_declared`, `adaptive_budget`.
A figure's rounds are seeds, or pool sizes.
"""

from __future__ import annotations

from typing import Final

from benchmarks.claims import adaptive_budget, kv_sweep, over_declared
from benchmarks.harness import Result, main, progress

NAME: Final = "policies"
GOALS: Final = (*kv_sweep.GOALS, *over_declared.GOALS, *adaptive_budget.GOALS)


def run(quick: bool) -> Result:
    progress("block pools of many sizes")
    sweep = kv_sweep.sweep(kv_sweep.QUICK_KV_TOKENS if quick else kv_sweep.KV_TOKENS)
    progress("max_tokens declared too high")
    declared = over_declared.compare((0,) if quick else over_declared.SEEDS)
    progress("prompt budgets by inter-token target")
    requests = adaptive_budget.REQUESTS // 2 if quick else adaptive_budget.REQUESTS
    budgets = (
        adaptive_budget.compare((50, 200), (256, 512), (0,), requests=requests) if quick else adaptive_budget.compare()
    )
    setting = {
        "engine": "model of Llama-3-8B on one A100, virtual time",
        "KV sweep": f"{kv_sweep.REQUESTS} requests of {kv_sweep.PROMPT_TOKENS:,} in / {kv_sweep.OUTPUT_TOKENS} out, "
        f"{kv_sweep.USERS} at a time, steps of {kv_sweep.STEP_TOKENS} tokens, no prefix cache; pools of "
        f"{', '.join(f'{size // 1000}k' for size in sorted({size for _, size in sweep}))} tokens",
        "max_tokens x 5": f"{over_declared.REQUESTS} requests with lengths of Azure's conversation trace, "
        f"{over_declared.USERS} at a time, {over_declared.KV_TOKENS:,} tokens of KV",
        "capacity": f"{requests} requests with lengths of Azure's conversation trace, "
        f"Poisson arrivals, p99 TTFT <= {adaptive_budget.TTFT_S:g} s and p99 ITL <= target, fixed chunks of "
        f"{', '.join(map(str, adaptive_budget.CHUNK_TOKENS))} tokens",
    }
    return Result(
        (*kv_sweep.figures(sweep), *over_declared.figures(declared), *adaptive_budget.figures(budgets)),
        setting,
        (*kv_sweep.charts(sweep), *over_declared.charts(declared), *adaptive_budget.charts(budgets)),
    )


if __name__ == "__main__":
    main(NAME, GOALS, run)
