"""The options as data: paths, types, defaults and help, read off the structs."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from inflightd.daemon.config.fields import Config


@dataclass(frozen=True, slots=True)
class ConfigField:
    """One leaf of the configuration."""

    path: tuple[str, ...]
    hint: Any  # the annotation, with its msgspec.Meta
    default: Any
    help: str
    kind: str  # "text", "int", "float", "bool", "size", "choice", "list", "table" (key=value)
    choices: tuple[str, ...]
    flag: str  # --like-this; empty: only in TOML

    @property
    def name(self) -> str:
        """As in messages and, with dots, in TOML: scripted.step_ms."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        return "INFLIGHTD_" + "_".join(self.path).upper()


def _metas(hint: Any) -> list[msgspec.Meta]:
    """All Meta of an annotation, those inside an optional included."""
    if get_origin(hint) is Annotated:
        inner, *extras = get_args(hint)
        return [meta for meta in extras if isinstance(meta, msgspec.Meta)] + _metas(inner)
    if get_origin(hint) in (Union, types.UnionType):
        return [meta for part in get_args(hint) for meta in _metas(part)]
    return []


def _bare(hint: Any) -> Any:
    """Without Annotated and without None."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in get_args(hint) if part is not type(None)]
        return _bare(parts[0]) if len(parts) == 1 else hint
    return hint


def _kind(bare: Any, extra: dict[str, Any]) -> str:
    if "kind" in extra:
        return str(extra["kind"])
    if get_origin(bare) is Literal:
        return "choice"
    if get_origin(bare) is list:
        return "list"
    if get_origin(bare) is dict:
        return "table"
    return {bool: "bool", int: "int", float: "float"}.get(bare, "text")


def config_fields(struct: type[msgspec.Struct] = Config, prefix: tuple[str, ...] = ()) -> list[ConfigField]:
    """All options, nested structs flattened, in the order they are written down."""
    hints = get_type_hints(struct, include_extras=True)
    found: list[ConfigField] = []
    for info in msgspec.structs.fields(struct):
        path, bare, metas = (*prefix, info.name), _bare(hints[info.name]), _metas(hints[info.name])
        if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
            found += config_fields(bare, path)
            continue
        extra = {key: value for meta in metas for key, value in (meta.extra or {}).items()}
        default = info.default if info.default is not msgspec.NODEFAULT else info.default_factory()
        found.append(
            ConfigField(
                path=path,
                hint=hints[info.name],
                default=default,
                help=next((meta.description for meta in metas if meta.description), ""),
                kind=_kind(bare, extra),
                choices=get_args(bare) if get_origin(bare) is Literal else (),
                flag="" if extra.get("toml_only") else extra.get("flag", "--" + "-".join(path).replace("_", "-")),
            )
        )
    return found
