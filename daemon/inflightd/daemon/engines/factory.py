"""The engines by name; an engine library is imported only for the engine that is asked for."""

from __future__ import annotations

from inflightd.daemon.core.wire import Start
from inflightd.daemon.engines.api import Progress, StepEngine
from inflightd.daemon.errors import ConfigError
from inflightd.profiling.ranges import Ranges


def load_engine(start: Start, progress: Progress, ranges: Ranges | None = None) -> StepEngine:
    """Raises `ConfigError` if that engine cannot work here, `EngineError` if loading it failed otherwise."""
    if start.engine == "openvino":
        try:
            import openvino  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "engine", start.engine, "not installed; run: pip install 'inflightd[openvino]'"
            ) from error
        from inflightd.daemon.engines.openvino.launch import launch

        return launch(start, progress, ranges)
    if start.engine == "scripted":
        from inflightd.daemon.engines.scripted import launch as launch_scripted

        return launch_scripted(start, progress, ranges)
    raise ConfigError("engine", start.engine, "this version has no host for it yet: use openvino or scripted")
