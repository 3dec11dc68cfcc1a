"""What one field cannot know about another."""

from __future__ import annotations

import os
import re
from collections.abc import Set

from inflightd.daemon.config.addresses import MAX_UNIX_PATH_BYTES, Address, parse_address
from inflightd.daemon.config.fields import Config
from inflightd.daemon.errors import ConfigError

_SESSION_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")
_CLASS_NAME = re.compile(r"^[a-z][a-z0-9_-]{0,62}$")


def check_config(config: Config) -> None:
    """Raises `ConfigError` for the first contradiction."""
    if config.engine == "tensorrt_llm":
        raise ConfigError("engine", config.engine, "this version has no host for it yet: use openvino or scripted")
    if config.kv_blocks is not None and config.kv_memory is not None:
        raise ConfigError("kv_memory", config.kv_memory, f"kv_blocks = {config.kv_blocks} is set too: give one of them")
    if config.engine == "scripted" and config.swap_memory:
        reason = "the scripted engine's blocks hold nothing: use scripted.host_blocks"
        raise ConfigError("swap_memory", config.swap_memory, reason)
    if config.max_num_tokens < config.max_batch_size:
        raise ConfigError(
            "max_num_tokens",
            config.max_num_tokens,
            f"a step of max_batch_size = {config.max_batch_size} sequences computes a token for each",
        )
    if config.max_sequence_tokens is not None and config.default_max_tokens >= config.max_sequence_tokens:
        raise ConfigError(
            "default_max_tokens",
            config.default_max_tokens,
            f"leaves no room for a prompt within max_sequence_tokens = {config.max_sequence_tokens}",
        )
    if config.engine != "scripted" and not config.model:
        raise ConfigError("model", config.model, f"the engine {config.engine} needs a model")
    if config.scripted.script == "tokens" and not config.scripted.token_ids:
        raise ConfigError("scripted.token_ids", [], "the script 'tokens' needs some")
    for field, ids in (
        ("scripted.token_ids", config.scripted.token_ids),
        ("scripted.eos_token_ids", config.scripted.eos_token_ids),
    ):
        if ids and max(ids) >= config.scripted.vocab_size:
            raise ConfigError(field, max(ids), f"not below scripted.vocab_size = {config.scripted.vocab_size}")
    for name in config.classes:
        if not _CLASS_NAME.match(name):
            raise ConfigError("classes", name, "a class name is of a-z, 0-9, _ and -, and begins with a letter")
    _check_tracing(config)
    _check_access(config)
    _check_listeners(config)


def _check_tracing(config: Config) -> None:
    if config.trace_dir == "":
        raise ConfigError("trace_dir", config.trace_dir, "expected a path")
    if (config.ranges == "chrome") != (config.ranges_path is not None):
        reason = "chrome needs a place to write to" if config.ranges == "chrome" else "is for ranges = chrome"
        raise ConfigError("ranges_path", config.ranges_path, reason)
    if config.nsys_session and not _SESSION_NAME.fullmatch(config.nsys_session):
        raise ConfigError("nsys_session", config.nsys_session, "expected letters, digits, - and _")


def _check_listeners(config: Config) -> None:
    if not config.listen:
        raise ConfigError("listen", config.listen, "at least one address is needed")
    seen: set[Address] = set()
    for text in config.listen:
        address = _address("listen", text)
        _refuse_exposed("listen", address, config)
        if address in seen and (address.path or address.port):
            raise ConfigError("listen", text, "given twice")
        seen.add(address)
    if config.metrics_listen is not None:
        address = _address("metrics_listen", config.metrics_listen)
        if address.path:
            raise ConfigError("metrics_listen", config.metrics_listen, "expected HOST:PORT")
        if not address.loopback and not config.insecure:
            reason = "other machines can read it, unencrypted and without tokens: say --insecure to allow"
            raise ConfigError("metrics_listen", str(address), reason)
        if address in seen and address.port:
            raise ConfigError("metrics_listen", config.metrics_listen, "is a gRPC listener too")
    if config.control_listen is not None:
        _check_control_listen(config.control_listen, config, seen)
    if config.admin_socket is not None:
        _check_admin_socket(config.admin_socket, seen)


def _check_control_listen(text: str, config: Config, listeners: Set[Address]) -> None:
    address = _address("control_listen", text)
    if address.path:
        raise ConfigError("control_listen", text, "expected HOST:PORT")
    # Any user of this machine can reach even a loopback address, and the control service can end the daemon.
    if config.tokens_file is None:
        raise ConfigError("control_listen", text, "needs tokens_file, with a token of scope control")
    _refuse_exposed("control_listen", address, config)
    others = {*listeners, *([_address("metrics_listen", config.metrics_listen)] if config.metrics_listen else [])}
    if address in others and address.port:
        raise ConfigError("control_listen", text, "is another listener too")


def _check_access(config: Config) -> None:
    for field in ("tls_cert", "tls_key", "tls_client_ca", "tokens_file"):
        if getattr(config, field) == "":
            raise ConfigError(field, "", "expected a path")
    if (config.tls_cert is None) != (config.tls_key is None):
        missing, given = ("tls_key", "tls_cert") if config.tls_key is None else ("tls_cert", "tls_key")
        raise ConfigError(missing, None, f"{given} is set: the two belong together")
    if config.tls_client_ca is not None and config.tls_cert is None:
        raise ConfigError("tls_client_ca", config.tls_client_ca, "needs tls_cert and tls_key")


def _check_admin_socket(path: str, listeners: Set[Address]) -> None:
    # An empty path would make gRPC serve the operator's service on every interface.
    if not path or path.startswith("unix:"):
        raise ConfigError("admin_socket", path, "expected a path")
    if len(path.encode()) > MAX_UNIX_PATH_BYTES:
        raise ConfigError("admin_socket", path, f"a Unix socket path holds at most {MAX_UNIX_PATH_BYTES} bytes")
    if os.path.abspath(path) in {os.path.abspath(each.path) for each in listeners if each.path}:
        raise ConfigError("admin_socket", path, "is a public listener too")


def _address(field: str, text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise ConfigError(field, text, str(error)) from None


def _refuse_exposed(field: str, address: Address, config: Config) -> None:
    missing = [name for name in ("tls_cert", "tokens_file") if getattr(config, name) is None]
    if missing and not address.loopback and not config.insecure:
        reason = f"other machines can reach it: set {' and '.join(missing)}, or say --insecure to allow it without"
        raise ConfigError(field, str(address), reason)
