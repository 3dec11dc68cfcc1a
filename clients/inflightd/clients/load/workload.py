"""What is sent: prompts as token ids, with the number of tokens to generate (end-of-sequence is to be ignored).

As a file, one JSON object a line: first `{"workload": name, "salt": 0, "concurrency": {lane: n}, "note": text}`, then
`{"id": 0, "cls": class, "lane": lane, "at": null | seconds, "prompt": [token ids], "out": tokens}` for each request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

# Ordinary tokens of every vocabulary in use: above the special ones, below the smallest size.
_TOKEN_RANGE = (100, 31_000)


class Lengths(Protocol):
    """A way of drawing `count` lengths in tokens."""

    def draw(self, random: Random, count: int) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    tokens: int

    def draw(self, random: Random, count: int) -> list[int]:
        return [self.tokens] * count


@dataclass(frozen=True, slots=True)
class Uniform:
    """Both ends included."""

    low_tokens: int
    high_tokens: int

    def draw(self, random: Random, count: int) -> list[int]:
        return [random.randint(self.low_tokens, self.high_tokens) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Choice:
    """Each drawn from the list on its own: the mix differs from seed to seed."""

    tokens: Sequence[int]

    def draw(self, random: Random, count: int) -> list[int]:
        return [random.choice(self.tokens) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Mix:
    """The list repeated and shuffled: the mix is exact whenever its length divides the count."""

    tokens: Sequence[int]

    def draw(self, random: Random, count: int) -> list[int]:
        lengths = [self.tokens[index % len(self.tokens)] for index in range(count)]
        random.shuffle(lengths)
        return lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """`at_s` None: closed loop, when a place of its `lane` is free; else that long after the start, come what may."""

    id: int
    prompt_token_ids: tuple[int, ...]
    output_tokens: int
    at_s: float | None = None
    service_class: str = ""
    lane: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`concurrency`: how many closed-loop requests of each lane are in flight at most."""

    name: str
    requests: tuple[LoadRequest, ...]
    concurrency: Mapping[str, int] = field(default_factory=dict)
    salt: int = 0
    note: str = ""

    def __post_init__(self) -> None:
        for each in self.requests:
            if each.at_s is None and self.concurrency.get(each.lane, 0) < 1:
                raise ValueError(f"request {each.id} has no time, and its lane {each.lane!r} no concurrency")
            if each.output_tokens < 1:
                raise ValueError(f"request {each.id}: output_tokens = {each.output_tokens}: must be at least 1")


def build(
    name: str,
    *,
    count: int,
    prompt: Lengths,
    output: Lengths,
    arrivals_s: Sequence[float] | None = None,
    concurrency: int | None = None,
    shared_prefix_tokens: int = 0,
    service_class: str = "",
    tenant: str = "",
    token_range: tuple[int, int] = _TOKEN_RANGE,
    seed: int = 0,
    salt: int = 0,
) -> Workload:
    """A workload of one class, open loop by `arrivals_s` or closed loop by `concurrency`.

    The prompt's length does not count the shared prefix.  `seed` draws the lengths, `salt` only the token ids: give
    each round its own salt, and no server can answer round 2 from the prefixes of round 1.
    """
    if (arrivals_s is None) == (concurrency is None):
        raise ValueError("give either arrivals_s or concurrency")
    if arrivals_s is not None and len(arrivals_s) != count:
        raise ValueError(f"{len(arrivals_s)} arrivals for {count} requests")
    lengths, tokens = Random(f"{name}/lengths/{seed}"), Random(f"{name}/tokens/{seed}/{salt}")
    prompts, outputs = prompt.draw(lengths, count), output.draw(lengths, count)
    prefix = _draw_tokens(tokens, shared_prefix_tokens, token_range)
    return Workload(
        name=name,
        requests=tuple(
            LoadRequest(
                id=index,
                prompt_token_ids=prefix + _draw_tokens(tokens, prompts[index], token_range),
                output_tokens=outputs[index],
                at_s=None if arrivals_s is None else arrivals_s[index],
                service_class=service_class,
                tenant=tenant,
            )
            for index in range(count)
        ),
        concurrency={} if concurrency is None else {"": concurrency},
        salt=salt,
    )


def read_workload(path: Path) -> Workload:
    """Raises ValueError naming the line that is wrong."""
    with path.open(encoding="utf-8") as lines:
        number = 1
        try:
            head = json.loads(next(lines, ""))
            requests = []
            for number, line in enumerate(lines, start=2):  # noqa: B007  # used in the error
                requests.append(_read_request(json.loads(line)))
            return Workload(
                name=head["workload"],
                requests=tuple(requests),
                concurrency=head.get("concurrency", {}),
                salt=head.get("salt", 0),
                note=head.get("note", ""),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: {error!r}") from error


def write_workload(workload: Workload, path: Path) -> None:
    with path.open("w", encoding="utf-8") as out:
        head = {
            "workload": workload.name,
            "salt": workload.salt,
            "concurrency": dict(workload.concurrency),
            "note": workload.note,
        }
        out.write(json.dumps(head) + "\n")
        for each in workload.requests:
            line = {
                "id": each.id,
                "cls": each.service_class,
                "lane": each.lane,
                "at": each.at_s,
                "prompt": each.prompt_token_ids,
                "out": each.output_tokens,
            }
            if each.tenant:
                line["tenant"] = each.tenant
            out.write(json.dumps(line) + "\n")


def _read_request(line: dict[str, Any]) -> LoadRequest:
    service_class = line.get("cls", "")
    return LoadRequest(
        id=line["id"],
        prompt_token_ids=tuple(line["prompt"]),
        output_tokens=line["out"],
        at_s=line["at"],
        service_class=service_class,
        lane=line.get("lane", service_class),
        tenant=line.get("tenant", ""),
    )


def _draw_tokens(random: Random, count: int, token_range: tuple[int, int]) -> tuple[int, ...]:
    low, high = token_range
    return tuple(random.randrange(low, high) for _ in range(count))
