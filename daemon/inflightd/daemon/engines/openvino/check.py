"""Is the one OpenVINO release there whose private paged-attention operation the graph is built on?"""

from __future__ import annotations

from importlib import metadata

from inflightd.daemon.errors import ConfigError

REQUIRED_VERSION = "2026.4.1"
PAGED_ATTENTION = "_PagedAttentionExtension"


def check_openvino() -> None:
    """Raises ConfigError (field `engine`) with the remedy.  Does not load the library if its version is wrong."""
    remedy = f"run: pip install 'inflightd[openvino]' (openvino=={REQUIRED_VERSION})"
    try:
        version = metadata.version("openvino")
    except metadata.PackageNotFoundError as error:
        raise ConfigError("engine", "openvino", f"OpenVINO is not installed; {remedy}") from error
    if version != REQUIRED_VERSION:
        raise ConfigError("engine", "openvino", f"OpenVINO {version} is installed, another is needed; {remedy}")
    try:
        from openvino import op

        getattr(op, PAGED_ATTENTION)
    except (ImportError, AttributeError) as error:
        raise ConfigError("engine", "openvino", f"OpenVINO is damaged ({error}); {remedy}") from error
