"""Options of a policy: declared once as dataclass fields, from which help, parsing and checks follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Final, TypeVar, get_type_hints

_METADATA_KEY: Final = "inflightd.option"
_TYPES: Final[tuple[type, ...]] = (bool, int, float, str)
_BOOLEANS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}

OptionValue = str | int | float | bool
_Options = TypeVar("_Options")


class OptionError(ValueError):
    """An option cannot be used: names the field, the value and the reason."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        self.field, self.value, self.reason = field, value, reason
        super().__init__(f"{field} = {value!r}: {reason}")


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option as shown to people."""

    name: str
    type: str  # int | float | bool | str
    default: OptionValue
    unit: str
    help: str


@dataclass(frozen=True, slots=True)
class _Limits:
    unit: str
    help: str
    minimum: float | None
    maximum: float | None
    choices: Sequence[OptionValue] | None

    def problem(self, value: OptionValue) -> str:
        """Why `value` is refused, or an empty string."""
        if self.choices is not None and value not in self.choices:
            return f"must be one of {', '.join(map(str, self.choices))}"
        if isinstance(value, str):
            return ""
        if self.minimum is not None and value < self.minimum:
            return f"must be at least {self.minimum:g}{self.unit and ' ' + self.unit}"
        if self.maximum is not None and value > self.maximum:
            return f"must be at most {self.maximum:g}{self.unit and ' ' + self.unit}"
        return ""


def option(
    default: Any,
    *,
    unit: str = "",
    help: str,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[OptionValue] | None = None,
) -> Any:
    """A dataclass field that is an option of type bool, int, float or str.  Bounds are inclusive."""
    return field(default=default, metadata={_METADATA_KEY: _Limits(unit, help, minimum, maximum, choices)})


def describe(options_class: type[Any]) -> list[OptionInfo]:
    """The options of a policy in the order of their declaration.  Raises TypeError if a field is no option."""
    types = get_type_hints(options_class)
    described: list[OptionInfo] = []
    for declared in fields(options_class):
        limits = declared.metadata.get(_METADATA_KEY)
        if limits is None or declared.default is MISSING or types[declared.name] not in _TYPES:
            raise TypeError(f"{options_class.__name__}.{declared.name} is not made with option() from a plain type")
        name = types[declared.name].__name__
        described.append(OptionInfo(declared.name, name, declared.default, limits.unit, limits.help))
    return described


def parse_options(options_class: type[_Options], given: Mapping[str, OptionValue]) -> _Options:
    """An instance from what a command line, a configuration file or a message holds.

    Raises `OptionError`, for options that the class itself refuses (a `__post_init__` that compares them) too.
    """
    types = {info.name: info.type for info in describe(options_class)}
    limits = {declared.name: declared.metadata[_METADATA_KEY] for declared in fields(options_class)}  # type: ignore[arg-type]
    values: dict[str, OptionValue] = {}
    for name, value in given.items():
        if name not in types:
            known = ", ".join(types) or "none"
            raise OptionError(name, value, f"unknown option; known: {known}")
        parsed = _PARSERS[types[name]](name, value)
        problem = limits[name].problem(parsed)
        if problem:
            raise OptionError(name, value, problem)
        values[name] = parsed
    try:
        return options_class(**values)
    except Exception as refusal:  # a plugin's own code
        raise OptionError("options", dict(given), str(refusal)) from refusal


def _parse_bool(name: str, value: OptionValue) -> bool:
    parsed = value if isinstance(value, bool) else _BOOLEANS.get(str(value).strip().lower())
    if parsed is None:
        raise OptionError(name, value, "must be true or false")
    return parsed


def _parse_int(name: str, value: OptionValue) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise OptionError(name, value, "must be a whole number")
    try:
        parsed = int(value)
    except ValueError:
        raise OptionError(name, value, "must be a whole number") from None
    if not -(1 << 63) <= parsed < 1 << 63:  # what a message can carry to another process
        raise OptionError(name, value, "must fit into 64 bits")
    return parsed


def _parse_float(name: str, value: OptionValue) -> float:
    if isinstance(value, bool):
        raise OptionError(name, value, "must be a number")
    try:
        parsed = float(value)
    except (ValueError, OverflowError):
        raise OptionError(name, value, "must be a number") from None
    if not math.isfinite(parsed):
        raise OptionError(name, value, "must be finite")
    return parsed


def _parse_str(name: str, value: OptionValue) -> str:
    if not isinstance(value, str):
        raise OptionError(name, value, "must be text")
    return value


_PARSERS: Final[Mapping[str, Callable[[str, OptionValue], OptionValue]]] = {
    "bool": _parse_bool,
    "int": _parse_int,
    "float": _parse_float,
    "str": _parse_str,
}
