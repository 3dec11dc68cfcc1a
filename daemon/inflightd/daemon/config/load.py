"""From TOML file, environment and flags to a `Config`, or to a `ConfigError` that names field, value and reason."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from inflightd.daemon.config.addresses import default_admin_socket, default_trace_dir
from inflightd.daemon.config.catalog import ConfigField, config_fields
from inflightd.daemon.config.checks import check_config
from inflightd.daemon.config.fields import ClassConfig, Config, ScriptedConfig
from inflightd.daemon.core.kv.sizes import parse_size
from inflightd.daemon.errors import ConfigError, Shown

# Variables of the command line tools and of the test suite, which share the prefix.
OTHER_VARIABLES = frozenset(
    {
        "INFLIGHTD_TARGET",
        "INFLIGHTD_ADMIN",
        "INFLIGHTD_CLIENT_TLS_CA",
        "INFLIGHTD_CLIENT_TLS_CERT",
        "INFLIGHTD_CLIENT_TLS_KEY",
        "INFLIGHTD_CLIENT_TOKEN",
        "INFLIGHTD_CLIENT_TOKEN_FILE",
        "INFLIGHTD_CONFIG",
        "INFLIGHTD_TEST_MODEL",
    }
)
_TABLES: dict[str, type[msgspec.Struct]] = {"scripted": ScriptedConfig}


def load_config(
    toml_path: Path | None, environ: Mapping[str, str], flags: Mapping[str, bool | str | Sequence[str]]
) -> Config:
    """Later sources win: the file, then INFLIGHTD_* of `environ`, then `flags` (by dotted name, as texts).

    A table of scheduler options from a later source is laid over the earlier one unless that source also names the
    scheduler: options of another policy would not fit.  Raises `ConfigError`.
    """
    fields = {field.name: field for field in config_fields()}
    values: dict[str, Any] = {}
    for layer in (_from_toml(toml_path, fields), _from_environment(environ, fields), _from_flags(flags, fields)):
        if "scheduler" not in layer and "scheduler_options" in layer and "scheduler_options" in values:
            layer["scheduler_options"] = {**values["scheduler_options"], **layer["scheduler_options"]}
        if "scheduler" in layer and "scheduler_options" not in layer:
            values.pop("scheduler_options", None)
        values.update(layer)
    values.setdefault("admin_socket", default_admin_socket(environ))
    values.setdefault("trace_dir", default_trace_dir(environ))
    config = _build(values)
    check_config(config)
    return config


def _build(values: Mapping[str, Any]) -> Config:
    plain = {name: value for name, value in values.items() if "." not in name}
    nested: dict[str, Any] = {
        table: struct(**{n.partition(".")[2]: v for n, v in values.items() if n.startswith(f"{table}.")})
        for table, struct in _TABLES.items()
    }
    return Config(**plain, **nested)


def _from_toml(path: Path | None, fields: Mapping[str, ConfigField]) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("config", str(path), error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, a number of 5000 digits, nested too deeply
        raise ConfigError("config", str(path), f"not valid TOML: {error}") from error
    layer: dict[str, Any] = {}
    for key, value in document.items():
        if key in _TABLES:
            if not isinstance(value, dict):
                raise ConfigError(key, value, "expected a table")
            for inner, inner_value in value.items():
                layer[f"{key}.{inner}"] = _checked(f"{key}.{inner}", inner_value, fields)
        elif key == "classes":
            layer[key] = _classes(value)
        else:
            layer[key] = _checked(key, value, fields)
    return layer


def _checked(name: str, value: object, fields: Mapping[str, ConfigField]) -> object:
    if name not in fields:
        raise ConfigError(name, value, "unknown option")
    field = fields[name]
    return _convert(field, _size(field, value) if isinstance(value, str) else value, strict=True)


def _classes(value: object) -> dict[str, ClassConfig]:
    if not isinstance(value, dict):
        raise ConfigError("classes", value, "expected a table of tables")
    fields = {field.name: field for field in config_fields(ClassConfig)}
    classes: dict[str, ClassConfig] = {}
    for class_name, options in value.items():
        if not isinstance(options, dict):
            raise ConfigError(f"classes.{class_name}", options, "expected a table")
        for key in options:
            if key not in fields:
                raise ConfigError(f"classes.{class_name}.{key}", options[key], "unknown option")
        parts: dict[str, Any] = {
            key: _convert(fields[key], item, strict=True, shown=f"classes.{class_name}.{key}")
            for key, item in options.items()
        }
        classes[class_name] = ClassConfig(**parts)
    return classes


def _from_environment(environ: Mapping[str, str], fields: Mapping[str, ConfigField]) -> dict[str, Any]:
    by_variable = {field.variable: field for field in fields.values() if field.flag}
    layer: dict[str, Any] = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith("INFLIGHTD_") or variable in OTHER_VARIABLES:
            continue
        if variable not in by_variable:
            # Its value may be a secret under a mistyped name.
            raise ConfigError(variable, Shown(f"({len(text)} characters)"), "unknown variable")
        field = by_variable[variable]
        many = [part.strip() for part in text.split(",") if part.strip()]
        layer[field.name] = _from_text(field, many if field.kind in ("list", "table") else text)
    return layer


def _from_flags(flags: Mapping[str, bool | str | Sequence[str]], fields: Mapping[str, ConfigField]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, bool) else _from_text(fields[name], value) for name, value in flags.items()
    }


def _from_text(field: ConfigField, text: str | Sequence[str]) -> object:
    """Texts have no types: they are read as what the field wants."""
    if field.kind == "table":
        table: dict[str, str] = {}
        for part in text:
            key, equals, value = part.partition("=")
            if not equals or not key.strip():
                raise ConfigError(field.name, part, "expected key=value")
            table[key.strip()] = value.strip()
        _refuse_unclean(field.name, table)
        return table
    if field.kind == "list":
        return _convert(field, list(text), strict=False)
    return _convert(field, _size(field, str(text)), strict=False)


def _size(field: ConfigField, text: str) -> object:
    if field.kind != "size":
        return text
    return 0 if text.strip() == "0" else parse_size(text, field=field.name)  # the field's range knows whether 0 is one


def _convert(field: ConfigField, value: object, *, strict: bool, shown: str | None = None) -> object:
    _refuse_unclean(shown or field.name, value)
    if field.choices and value not in field.choices:
        raise ConfigError(shown or field.name, value, f"expected one of {', '.join(field.choices)}")
    try:
        return msgspec.convert(value, field.hint, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(shown or field.name, value, str(error)) from None


def _refuse_unclean(name: str, value: object) -> None:
    """No path holds a zero character; bytes that are no UTF-8 came in as lone surrogates and could not go out again."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and any(char == "\0" or "\ud800" <= char <= "\udfff" for char in text):
            raise ConfigError(name, text, "holds a zero character or is not UTF-8")
