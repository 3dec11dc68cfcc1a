"""Requests with their lengths and, in an open loop, their arrival times: all drawn before the run."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Final

from inflightd.clients.load.arrivals import poisson

_LENGTHS: Final = Path(__file__).parents[1] / "data" / "azure_conv_2023_lengths.csv"


@dataclass(frozen=True, slots=True)
class Offer:
    """One request as a client would send it."""

    prompt_tokens: int
    output_tokens: int  # what is really generated: then comes the end-of-sequence token's place
    max_tokens: int = 0  # what the client declares; 0: just what is generated
    arrival_s: float = 0.0  # from the start of the run; in a closed loop a user sends it when its last one has ended
    service_class: str = "default"
    prefix_tokens: int = 0  # leading tokens that all offers with the same number here have in common


def conversations(count: int, *, seed: int = 0, longest_tokens: int = 1 << 31) -> list[Offer]:
    """`count` pairs of lengths of the Azure conversation trace (2023), in an order drawn by `seed`."""
    rows = [offer for offer in _conversations() if offer.prompt_tokens + offer.output_tokens <= longest_tokens]
    Random(f"conversations/{seed}").shuffle(rows)
    return list(islice(cycle(rows), count))


def arriving(offers: Sequence[Offer], rate_per_s: float, *, seed: int = 0) -> list[Offer]:
    """The same offers, arriving as a Poisson process.  One seed gives one pattern, stretched by the rate."""
    times_s = poisson(rate_per_s, len(offers), seed=seed)
    return [replace(offer, arrival_s=time_s) for offer, time_s in zip(offers, times_s, strict=True)]


@cache
def _conversations() -> tuple[Offer, ...]:
    with _LENGTHS.open(newline="") as file:
        return tuple(Offer(int(row["prompt_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(file))
