"""The first run of a shape is slow: kernels are generated then.  Run the usual ones before the first request.

A pool's content is arbitrary until a sequence writes its blocks, so the warm-up may write wherever it likes.
"""

from __future__ import annotations

from collections.abc import Iterator

from inflightd.daemon.core.sampling.params import SamplingParams
from inflightd.daemon.core.sampling.state import SamplingState
from inflightd.daemon.engines.api import Draw, EngineInfo, Row, StepBatch, StepEngine

_PROMPT_TOKENS = 512
_MOST_DECODES = 32
_GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=1)
_DRAWN = SamplingParams(temperature=0.8, top_p=0.95, seed=0, max_tokens=1)


def warm_up(engine: StepEngine, max_num_tokens: int, max_batch_size: int) -> Iterator[float]:
    """Run a step of each usual shape; yields the fraction done after each."""
    info = engine.info
    prompt = min(_PROMPT_TOKENS, max_num_tokens, info.context_tokens, info.blocks_total * info.block_size_tokens)
    most = min(_MOST_DECODES, max_batch_size, max_num_tokens)
    decodes = [1 << power for power in range(most.bit_length())]
    steps = [[_row(prompt, info, _GREEDY)], [_row(prompt // 4 or 1, info, _GREEDY), *[_row(1, info, _GREEDY)] * most]]
    steps += [[_row(1, info, _GREEDY)] * count for count in decodes]
    steps += [[_row(1, info, _DRAWN)] * count for count in (1, most)]
    for index, rows in enumerate(steps):
        engine.start(StepBatch(0, rows))
        engine.finish()
        yield (index + 1) / len(steps)


def _row(tokens: int, info: EngineInfo, params: SamplingParams) -> Row:
    table = range(-(-tokens // info.block_size_tokens))
    return Row(0, [0] * tokens, 0, table, [Draw(SamplingState(params, 0, ()), 0)])
