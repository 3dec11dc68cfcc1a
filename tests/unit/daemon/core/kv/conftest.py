"""A sequence as the ledger sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass(slots=True)
class PlainSequence:
    """The fields of `SequenceView` that the KV cache reads, and constants for the others."""

    number: int
    prompt_tokens: int
    computed_tokens: int = 0
    generated_tokens: int = 0
    forks_to_come: int = 0
    max_new_tokens: int = 1000
    held_blocks: int = 0
    exclusive_blocks: int = 0
    service_class: str = "default"
    tenant: str = ""
    arrival_ns: int = 0
    deadline_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    preemptions: int = 0
    overtaken: int = 0
    swapped: bool = False

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.generated_tokens


@pytest.fixture(scope="session")
def make_sequence() -> Callable[..., PlainSequence]:
    return PlainSequence
