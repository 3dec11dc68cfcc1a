"""High TTFT although prompts begin alike: the prefix cache is off, too small, or has nothing to find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from inflightd.profiling.doctor.facts import Facts
from inflightd.profiling.doctor.findings import Finding, How, Remedy, Severity
from inflightd.profiling.doctor.kv_sizes import blocks_for_load
from inflightd.profiling.records import RequestRecord
from inflightd.profiling.wording import counted, duration, share

KEY_TOKENS: Final = (32, 128, 512)  # of which `RequestRecord.prefix_keys` are the hashes
FEWEST: Final = 4  # requests that begin alike; fewer are chance
FOUND: Final = 0.5  # of what could have been found; the first ones of a burst compute the prefix themselves
SPENT: Final = 0.05  # of the time went on computing it again
EARLY: Final = 0.5  # of the long prompts begin alike and differ soon


@dataclass(frozen=True, slots=True)
class _Sharing:
    """Requests that began like an earlier one."""

    requests: Sequence[RequestRecord]
    tokens: int  # that they shared, at least
    found_tokens: int  # of these: in the cache
    longest: int  # shared beginning

    @property
    def missed_tokens(self) -> int:
        return self.tokens - self.found_tokens


def examine(facts: Facts) -> Iterator[Finding]:
    header, cost = facts.header, facts.cost
    if header is None or cost is None:
        return
    sharing = _sharing(facts.trace.requests)
    lost_ns = int(sharing.missed_tokens * cost.prefill_token_ns)
    if (
        len(sharing.requests) >= FEWEST
        and sharing.found_tokens < FOUND * sharing.tokens
        and lost_ns >= SPENT * facts.worked_ns
    ):
        yield _missing(facts, sharing, lost_ns)
    elif note := _differing_early(facts, sharing):
        yield note


def _sharing(requests: Sequence[RequestRecord]) -> _Sharing:
    seen: set[int] = set()
    alike, tokens, found, longest = [], 0, 0, 0
    for request in sorted(requests, key=lambda each: each.arrival_ns):
        shared = max((KEY_TOKENS[at] for at, key in enumerate(request.prefix_keys) if key in seen), default=0)
        seen.update(request.prefix_keys)
        if shared and request.first_token_ns is not None:
            alike.append(request)
            tokens += shared
            found += min(shared, request.cached_tokens)
            longest = max(longest, shared)
    return _Sharing(alike, tokens, found, longest)


def _missing(facts: Facts, sharing: _Sharing, lost_ns: int) -> Finding:
    header = facts.header
    assert header is not None
    prompt_tokens = sum(request.prompt_tokens for request in facts.trace.requests)
    ttft_ns = sorted((each.first_token_ns or 0) - each.arrival_ns for each in sharing.requests)
    each_ns = lost_ns // len(sharing.requests)
    evidence = [
        f"{len(sharing.requests)} of {len(facts.trace.requests)} prompts begin like an earlier one, by up to "
        f"{sharing.longest} tokens or more: at least {counted(sharing.tokens, 'token')}, "
        f"{share(sharing.tokens / max(1, prompt_tokens))} of all prompt tokens.",
        f"Only {counted(sharing.found_tokens, 'token')} of these were found in the prefix cache.",
        f"Half of them waited {duration(ttft_ns[len(ttft_ns) // 2])} or more for their first token; about "
        f"{duration(each_ns)} of it was the common beginning.",
    ]
    effect = f"The common beginning is computed once: first tokens come about {duration(each_ns)} earlier."
    if not header.prefix_cache:
        cause = "The prefix cache is off (prefix_cache = false): each prompt is computed from its first token."
        remedy = Remedy(How.SET, "prefix_cache = true", effect)
    elif (lowest := _least_free(facts)) is not None and lowest * header.block_size_tokens < 2 * sharing.longest:
        needed = (blocks_for_load(facts, max((step.running or 1) for step in facts.steps)) or 0) + -(
            -2 * sharing.longest // max(1, header.block_size_tokens)
        )
        evidence.append(f"At times only {counted(lowest, 'block')} of {header.blocks_total} were free.")
        cause = "The pool is too small: the beginning's blocks are evicted for running sequences before it is needed."
        remedy = Remedy(How.SET, f"kv_blocks = {max(needed, header.blocks_total * 5 // 4)}", effect)
    else:
        cause = (
            "The cache is on and had room: either these requests are of different tenants, who never share, or other "
            "prompts push the beginning out between two of them."
        )
        remedy = Remedy(How.DO, "send requests that may share a beginning under one tenant, or raise kv_blocks", effect)
    return Finding(
        id="prefix-reuse",
        severity=Severity.FINDING,
        title="High time to first token: a common beginning of prompts is computed again and again",
        evidence=tuple(evidence),
        cause=cause,
        remedies=(remedy,),
        lost_ns=lost_ns,
    )


def _least_free(facts: Facts) -> int | None:
    return min((step.blocks_free for step in facts.steps if step.blocks_free is not None), default=None)


def _differing_early(facts: Facts, sharing: _Sharing) -> Finding | None:
    """Long prompts whose first tokens are the same and whose next are not: something that changes stands early."""
    long = [request for request in facts.trace.requests if len(request.prefix_keys) == len(KEY_TOKENS)]
    shared = [Counter(request.prefix_keys[place] for request in long) for place in range(2)]
    early = [r for r in long if shared[0][r.prefix_keys[0]] > 1 and shared[1][r.prefix_keys[1]] == 1]
    if len(early) < FEWEST or len(early) < EARLY * len(long):
        return None
    return Finding(
        id="prefix-differs-early",
        severity=Severity.NOTE,
        title="Long prompts begin alike and differ before their 128th token",
        evidence=(
            f"{len(early)} of {len(long)} prompts of 512 tokens or more share their first {KEY_TOKENS[0]} tokens with "
            f"another one, and none shares its first {KEY_TOKENS[1]}.",
        ),
        cause="Perhaps something that changes (a date, a user's name) stands before a longer common part: what comes "
        "after the first difference is never found again.",
        remedies=(
            Remedy(
                How.DO,
                "move what changes behind the common part of the prompt",
                "The common part is computed once.",
            ),
        ),
    )
