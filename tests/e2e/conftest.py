"""One f32 engine of the real model for the whole directory: loading it is the slow part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inflightd.daemon.engines.openvino.engine import OpenVinoEngine, load
from inflightd.daemon.engines.openvino.options import OpenVinoOptions
from inflightd.daemon.models.source import ModelSource
from tests.reference.llama import ReferenceLlama


@pytest.fixture(scope="session")
def exact_engine(model_path: Path) -> Iterator[OpenVinoEngine]:
    """float32 arithmetic and float32 KV: what equality may be asked of."""
    source = ModelSource("gguf", model_path, "smollm2")
    options = OpenVinoOptions(
        source=source, num_blocks=128, precision="f32", kv_dtype="f32", max_num_tokens=128, max_batch_size=32
    )
    engine = load(options)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def reference(model_path: Path) -> ReferenceLlama:
    return ReferenceLlama(model_path)
