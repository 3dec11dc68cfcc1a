"""An engine process that died while it served."""

from __future__ import annotations

import pytest

from inflightd.profiling.doctor.findings import How
from tests.support.diagnoses import diagnose
from tests.support.traces import MS, Engine, Recording, asks, engine_restart, healthy


def lost(*kinds: str, detail: str = "the engine process 7 was ended by signal 9") -> Recording:
    engine = Engine()
    engine.waiting += asks(4)
    for _ in range(20):
        engine.step()
    for kind in kinds:
        engine.wait(kind, {"detail": detail})
    return engine.recording()


def test_a_death_is_found_with_the_time_that_loading_again_took() -> None:
    found = diagnose(engine_restart(load_ns=400 * MS))["engine-lost"]
    assert found.lost_ns == 400 * MS
    assert found.evidence[0].startswith("It died 1 time; last: ")
    assert found.evidence[1] == "Loading it again took 400 ms."


@pytest.mark.parametrize(("detail", "how"), [("was ended by signal 9", How.RUN), ("ended with status 70", How.DO)])
def test_what_to_look_at_depends_on_how_it_ended(detail: str, how: How) -> None:
    found = diagnose(lost("engine_lost", "engine_start", "engine_ready", "engine_lost", detail=detail))["engine-lost"]
    assert found.remedies[0].how is how
    assert found.evidence[0] == f"It died 2 times; last: {detail}."


@pytest.mark.parametrize("recording", [healthy(), lost("engine_start", "engine_lost")], ids=["healthy", "in its load"])
def test_an_engine_that_did_not_serve_has_not_died_serving(recording: Recording) -> None:
    assert "engine-lost" not in diagnose(recording)
