"""Measured claims: `python -m benchmarks.NAME [--quick] [--json]` runs one, `python -m benchmarks` all of them.

A benchmark is a module of this package that declares its goals and ends with `harness.main(NAME, GOALS, run)`.
"""

from typing import Final

# In the order in which they are run and documented.
BENCHMARKS: Final = (
    "engine_step",
    "static_vs_inflight",
    "kv",
    "scheduling_cost",
    "policies",
    "policies_cpu",
    "presets",
    "hot_swap",
    "tracing",
)
