"""Workloads: what is drawn, and the file they travel in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from inflightd.clients.load import Choice, Fixed, LoadRequest, Mix, Uniform, Workload, build, read_workload
from inflightd.clients.load.workload import write_workload


def _build(**settings) -> Workload:
    chosen = {"count": 64, "prompt": Uniform(10, 20), "output": Mix((3, 3, 3, 300)), "concurrency": 16} | settings
    return build("w", **chosen)


def test_a_mix_is_exact_and_a_choice_is_drawn() -> None:
    assert Counter(each.output_tokens for each in _build().requests) == {3: 48, 300: 16}
    drawn = Counter(each.output_tokens for each in _build(output=Choice((3, 3, 3, 300)), count=400).requests)
    assert drawn.keys() == {3, 300}
    assert drawn[300] != 100


def test_lengths_depend_on_the_seed_and_tokens_also_on_the_salt() -> None:
    base, salted, reseeded = _build(), _build(salt=1), _build(seed=1)

    def shape(workload: Workload) -> list[tuple[int, int]]:
        return [(len(each.prompt_token_ids), each.output_tokens) for each in workload.requests]

    assert _build() == base
    assert shape(salted) == shape(base)
    assert salted.requests[0].prompt_token_ids != base.requests[0].prompt_token_ids
    assert shape(reseeded) != shape(base)
    assert {length for length, _ in shape(base)} <= set(range(10, 21))


def test_a_shared_prefix_is_in_every_prompt_and_extra() -> None:
    requests = _build(prompt=Fixed(8), shared_prefix_tokens=32).requests
    assert {each.prompt_token_ids[:32] for each in requests} == {requests[0].prompt_token_ids[:32]}
    assert {len(each.prompt_token_ids) for each in requests} == {40}
    assert len({each.prompt_token_ids for each in requests}) == 64


def test_a_workload_survives_its_file(tmp_path: Path) -> None:
    workload = Workload(
        name="both",
        requests=(
            LoadRequest(id=0, prompt_token_ids=(1, 2), output_tokens=3, service_class="short", lane="main", tenant="t"),
            LoadRequest(id=1, prompt_token_ids=(4,), output_tokens=5, at_s=0.125),
        ),
        concurrency={"main": 2},
        salt=7,
        note="n",
    )
    write_workload(workload, tmp_path / "w.jsonl")
    assert read_workload(tmp_path / "w.jsonl") == workload


def test_a_class_without_a_lane_is_its_own_lane(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text(
        '{"workload": "w", "concurrency": {"main": 1}}\n{"id": 0, "cls": "main", "at": null, "prompt": [1], "out": 1}\n'
    )
    assert read_workload(path).requests[0].lane == "main"


@pytest.mark.parametrize(
    ("text", "line"),
    [("", 1), ("{}\n", 1), ('{"workload": "w"}\n{"id": 1}\n', 2), ('{"workload": "w"}\nnot json\n', 2)],
)
def test_a_broken_file_names_the_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"w\.jsonl, line {line}"):
        read_workload(path)


def test_what_could_not_run_is_refused() -> None:
    with pytest.raises(ValueError, match="either"):
        _build(arrivals_s=[0.0] * 64)
    with pytest.raises(ValueError, match="1 arrivals for 64"):
        _build(arrivals_s=[0.0], concurrency=None)
    with pytest.raises(ValueError, match="no concurrency"):
        _build(concurrency=0)
    with pytest.raises(ValueError, match="at least 1"):
        _build(output=Fixed(0))
