"""Steps of the OpenVINO engine for the KV benchmarks: rows, and what a step took."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.engines.api import Draw, Row, StepBatch, StepResult
from inflightd.daemon.engines.openvino.engine import OpenVinoEngine

GREEDY: Final = SamplingParams(temperature=0.0, seed=0, max_tokens=1)


@dataclass(frozen=True, slots=True)
class Timed:
    result: StepResult
    step_ms: float


def row(number: int, tokens: Sequence[int], past: int, table: Sequence[int], params: SamplingParams | None) -> Row:
    """A row whose last token is sampled with `params`; None: it samples nothing."""
    draws = [] if params is None else [Draw(SamplingState(params, 0, ()), past + len(tokens))]
    return Row(number, tokens, past, table, draws)


def timed(engine: OpenVinoEngine, rows: Sequence[Row]) -> Timed:
    """One step, from start() to the tokens."""
    begin = time.perf_counter()
    engine.start(StepBatch(0, rows))
    result = engine.finish()
    return Timed(result, (time.perf_counter() - begin) * 1e3)
