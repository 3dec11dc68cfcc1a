"""TTFT rises with the length of the prompt: what is waited for is its prefill."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import StatisticsError, correlation, linear_regression
from typing import Final

from inflightd.profiling.doctor.facts import Facts
from inflightd.profiling.doctor.findings import Finding, How, Remedy, Severity
from inflightd.profiling.records import RequestRecord
from inflightd.profiling.wording import counted, duration, share

TARGET_NS: Final = 1_000_000_000  # where no class promises less: after a second a reader thinks nothing happens
FEWEST: Final = 8  # requests; a line through fewer is chance
EXPLAINED: Final = 0.7  # of the variance of the time to the first token, by the prompt's length
MISSED: Final = 0.05  # of the requests come too late
QUEUED: Final = 0.5  # of that time before the first step: then it is the queue, not the prompt


def examine(facts: Facts) -> Finding | None:
    by_class: dict[str, list[RequestRecord]] = {}
    for request in facts.trace.requests:
        if request.first_token_ns is not None and request.scheduled_ns is not None:
            by_class.setdefault(request.service_class, []).append(request)
    found = [finding for name, requests in by_class.items() if (finding := _of_class(facts, name, requests))]
    return max(found, key=lambda finding: finding.lost_ns or 0, default=None)


def _of_class(facts: Facts, name: str, requests: Sequence[RequestRecord]) -> Finding | None:
    target_ns = next((each.ttft_ns for each in facts.classes if each.name == name and each.ttft_ns), TARGET_NS)
    late = [request for request in requests if _ttft_ns(request) > target_ns]
    if len(requests) < FEWEST or not late or len(late) < MISSED * len(requests):
        return None
    if sum(_queued_ns(request) for request in late) > QUEUED * sum(_ttft_ns(request) for request in late):
        return None
    computed = [float(request.prompt_tokens - request.cached_tokens) for request in requests]
    took_ns = [float(_ttft_ns(request) - _queued_ns(request)) for request in requests]
    try:
        slope, intercept = linear_regression(computed, took_ns)
        explained = correlation(computed, took_ns) ** 2
    except StatisticsError:  # all of one length, or all of one time
        return None
    if slope <= 0 or explained < EXPLAINED:
        return None
    tokens = max(64, int((target_ns - max(0.0, intercept)) / slope) // 64 * 64)
    longer = [request for request in requests if request.prompt_tokens > tokens]
    return Finding(
        id="prompt-length",
        severity=Severity.FINDING,
        title="The time to the first token rises with the prompt's length: it is prefill",
        evidence=(
            f"Each prompt token adds {duration(slope)} to the first token's time; length explains "
            f"{share(explained)} of its variance over {counted(len(requests), 'request')} of class {name}.",
            f"{len(late)} of them waited longer than {duration(target_ns)}, the longest "
            f"{duration(max(map(_ttft_ns, late)))}, with prompts of up to {max(r.prompt_tokens for r in late)} tokens; "
            f"on average {duration(sum(map(_queued_ns, late)) / len(late))} of it was queueing.",
        ),
        cause="A prompt has to be computed before its first token can come, and this engine computes "
        f"{1e9 / slope:.0f} of its tokens a second.",
        remedies=(
            Remedy(
                How.SET,
                f"[classes.{name}]\nmax_prompt_tokens = {tokens}",
                f"Longer prompts are refused at once ({len(longer)} of {len(requests)} here); all others have their "
                f"first token within {duration(target_ns)} of their start.",
            ),
            Remedy(
                How.RUN,
                "inflightd scheduler use latency-guarantee",
                "Long prompts are computed in chunks and short ones pass them: that helps all others, not the long "
                "ones themselves.",
            ),
        ),
        lost_ns=int(sum(_ttft_ns(request) - target_ns for request in late)),
    )


def _ttft_ns(request: RequestRecord) -> int:
    return (request.first_token_ns or 0) - request.arrival_ns


def _queued_ns(request: RequestRecord) -> int:
    return (request.scheduled_ns or 0) - request.arrival_ns
