"""The engines by name; an engine library is imported only for the engine that is asked for."""

from __future__ import annotations

from inflightd.daemon.core.wire import Start
from inflightd.daemon.engines.api import Progress, StepEngine
from inflightd.daemon.errors import ConfigError

_SCRIPTED_BLOCKS = 1024  # where no number is given; the scripted engine's blocks take no memory


def load_engine(start: Start, progress: Progress) -> StepEngine:
    """Raises `ConfigError` if that engine cannot work here, `EngineError` if loading it failed otherwise."""
    if start.engine == "openvino":
        try:
            import openvino  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "engine", start.engine, "not installed; run: pip install 'inflightd[openvino]'"
            ) from error
        from inflightd.daemon.engines.openvino.launch import launch

        return launch(start, progress)
    if start.engine == "scripted":
        from inflightd.daemon.engines import scripted

        settings = start.scripted
        options = scripted.ScriptedOptions(
            **{name: getattr(settings, name) for name in settings.__struct_fields__},
            blocks_total=start.kv.blocks or _SCRIPTED_BLOCKS,
            sampled=True,
        )
        return scripted.load(options, progress)
    raise ConfigError("engine", start.engine, "this version has no host for it; use openvino or scripted")
