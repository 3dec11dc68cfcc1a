"""The embedded CPU engine: OpenVINO's paged attention, driven one step at a time."""

from __future__ import annotations

import os
import time
from typing import Any

import openvino as ov

from inflightd.daemon.core.sampling.sampler import Sampler
from inflightd.daemon.engines.api import EngineInfo, Progress, StepBatch, StepResult
from inflightd.daemon.engines.moves import do_moves
from inflightd.daemon.engines.openvino.candidates import Normaliser, StepLogits
from inflightd.daemon.engines.openvino.check import check_openvino
from inflightd.daemon.engines.openvino.graph import LOGITS, MAXIMA, TOKEN, build_llama, build_normaliser
from inflightd.daemon.engines.openvino.kv_cache import KvCache
from inflightd.daemon.engines.openvino.kv_layout import BLOCK_SIZE_TOKENS, KvDtype
from inflightd.daemon.engines.openvino.options import OpenVinoOptions, Precision
from inflightd.daemon.engines.openvino.step_inputs import StepDraws, StepInputs
from inflightd.daemon.engines.openvino.warm_up import warm_up
from inflightd.daemon.errors import ConfigError, EngineError
from inflightd.daemon.models.gguf_file import ModelMetadata, read_gguf
from inflightd.daemon.models.weights import load_weights
from inflightd.profiling.ranges import SAMPLE, Ranges


def load(
    options: OpenVinoOptions, progress: Progress = lambda stage, fraction: None, ranges: Ranges | None = None
) -> OpenVinoEngine:
    """Load the model and run its usual shapes once.  `progress` gets a stage and a fraction that never falls.

    Raises ConfigError if the model, the library or the machine cannot work, EngineError for all else.
    """
    check_openvino()
    if options.source.kind != "gguf":
        raise ConfigError("model", str(options.source.path), "the openvino engine runs GGUF files only")
    precision, kv_dtype = resolve_dtypes(options.precision, options.kv_dtype)
    threads = options.threads or len(os.sched_getaffinity(0))
    progress("read", 0.0)
    gguf = read_gguf(options.source.path)
    arrays = load_weights(gguf, options.weights_cache, lambda done: progress("weights", 0.6 * done))
    progress("compile", 0.6)
    try:
        compiled, normaliser = _compile(gguf.model, arrays, precision, kv_dtype, threads)
    except RuntimeError as error:
        raise ConfigError("model", str(options.source.path), f"OpenVINO cannot compile it: {error}") from error
    progress("warm up", 0.8)
    engine = OpenVinoEngine(options, gguf.model, arrays, compiled, normaliser, precision, kv_dtype, threads)
    for done in warm_up(engine, options.max_num_tokens, options.max_batch_size):
        progress("warm up", 1 - 0.2 * (1 - done))
    engine.ranges = ranges  # warming up is part of the load
    return engine


def resolve_dtypes(precision: Precision | None, kv_dtype: KvDtype | None) -> tuple[Precision, KvDtype]:
    """The machine's defaults filled in.  Raises ConfigError for what this CPU or the plugin cannot do."""
    capable = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if precision is None:
        precision = "bf16" if capable and kv_dtype != "f32" else "f32"
    if precision == "bf16" and not capable:
        raise ConfigError("precision", "bf16", "this CPU has no bf16 instructions; use f32")
    if kv_dtype not in (None, precision, "u8"):
        raise ConfigError("kv_dtype", kv_dtype, f"with precision {precision} the engine can use {precision} or u8")
    return precision, kv_dtype or precision


def _compile(
    model: ModelMetadata, arrays: dict[str, Any], precision: Precision, kv_dtype: KvDtype, threads: int
) -> tuple[Any, Any]:
    core = ov.Core()
    common = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    llama = core.compile_model(
        build_llama(model, arrays, fuse_mlp=precision == "bf16" and threads % 2 == 0),
        "CPU",
        {**common, "INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": kv_dtype},
    )
    # The sums behind log probabilities are always made in float32.
    normaliser = core.compile_model(
        build_normaliser(model.vocab_size), "CPU", {**common, "INFERENCE_PRECISION_HINT": "f32"}
    )
    return llama, normaliser


class OpenVinoEngine:
    """Implements `inflightd.daemon.engines.api.StepEngine`; made by `load`."""

    def __init__(
        self,
        options: OpenVinoOptions,
        model: ModelMetadata,
        arrays: dict[str, Any],
        compiled: Any,
        normaliser: Any,
        precision: Precision,
        kv_dtype: KvDtype,
        threads: int,
    ) -> None:
        self._arrays = arrays  # the graph's constants share this memory
        self._compiled = compiled
        self._request = compiled.create_infer_request()
        self._normaliser = Normaliser(normaliser)
        # Block num_blocks is where padding rows write.
        self.kv = KvCache(compiled, model, kv_dtype, options.num_blocks + 1, options.num_host_blocks)
        for name, tensor in self.kv.tensors.items():
            self._request.set_tensor(name, tensor)
        rows = 2 * options.max_batch_size  # of them may be padding
        self._inputs = StepInputs(
            self._request,
            scratch_block=options.num_blocks,
            max_tokens=options.max_num_tokens + rows,
            max_rows=rows,
            max_blocks=options.num_blocks + rows * (model.context_tokens // BLOCK_SIZE_TOKENS + 1),
        )
        self._sampler = Sampler(model.eos_token_ids, model.vocab_size)
        self._draws: StepDraws | None = None  # of the step that runs
        self._moves_ns = 0  # of the step that runs
        self.ranges: Ranges | None = None  # where its part of each step is traced to
        self._info = EngineInfo(
            engine="openvino",
            model=options.source.name,
            vocab_size=model.vocab_size,
            context_tokens=model.context_tokens,
            block_size_tokens=BLOCK_SIZE_TOKENS,
            blocks_total=options.num_blocks,
            host_blocks_total=options.num_host_blocks,
            kv_bytes_per_token=self.kv.bytes_per_block // BLOCK_SIZE_TOKENS,
            kv_dtype=kv_dtype,
            precision=precision,
            eos_token_ids=list(model.eos_token_ids),
            detail={"threads": str(threads), "openvino": ov.__version__},
        )

    @property
    def info(self) -> EngineInfo:
        return self._info

    def start(self, batch: StepBatch) -> None:
        """Returns once the step runs in OpenVINO's threads; the GIL is free meanwhile."""
        if self._draws is not None:
            raise EngineError("start() before finish() of the step that runs")
        self._moves_ns = 0
        if batch.moves:
            begun_ns = time.monotonic_ns()
            do_moves(batch.moves, self.kv.move_blocks, self.ranges)
            self._moves_ns = time.monotonic_ns() - begun_ns
        if self.ranges is not None:
            self.ranges.push(batch.forward, batch.tokens)
        self._draws = self._inputs.fill(batch)
        try:
            self._request.start_async()
        except RuntimeError as error:
            raise EngineError(f"step {batch.step} could not start: {error}") from error

    def finish(self) -> StepResult:
        draws = self._draws
        if draws is None:
            raise EngineError("finish() without start()")
        self._draws = None
        try:
            self._request.wait()  # infer() would also copy every output
            forward_end_ns = time.monotonic_ns()
            if self.ranges is not None:
                self.ranges.pop()
                self.ranges.push(SAMPLE, len(draws.asked))
            greedy = self._request.get_output_tensor(TOKEN).data
            if draws.scales:
                view = StepLogits(
                    greedy,
                    self._request.get_output_tensor(LOGITS).data,
                    self._request.get_output_tensor(MAXIMA).data,
                    draws.scales,
                    draws.any_drawn,
                    self._normaliser,
                )
                token_ids, logprobs = self._sampler.sample(draws.asked, view)
            else:
                tokens = greedy.tolist()
                token_ids, logprobs = [tokens[row] for row, _, _ in draws.asked], None
        except RuntimeError as error:
            raise EngineError(f"the step failed: {error}") from error
        sample_ns = time.monotonic_ns() - forward_end_ns
        if self.ranges is not None:
            self.ranges.pop()
        forward_ns = round(self._request.latency * 1e6)  # as OpenVINO's own threads took it, however late we came
        return StepResult(token_ids, logprobs, forward_ns, sample_ns, self._moves_ns)

    def close(self) -> None:
        """Give back the memory; waits for a step that runs.  The engine cannot be used again."""
        self._request.wait()
        del self._request, self._inputs, self._normaliser, self.kv, self._compiled, self._arrays
