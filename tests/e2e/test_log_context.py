"""The front's log lines say under which policy and after which step they were written."""

from __future__ import annotations

from inflightd.clients.admin import AsyncAdmin
from inflightd.clients.client import AsyncClient
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from tests.support.daemons import running_daemon


async def test_a_line_has_the_generation_of_the_policy_and_the_last_step() -> None:
    with running_daemon("--engine", "scripted", "--kv-blocks", "64") as daemon:

        def logged(event: str, **fields: object) -> dict[str, object]:
            def found() -> list[dict[str, object]]:
                return [line for line in daemon.log if {"event": event, **fields}.items() <= line.items()]

            daemon.wait_until(lambda: bool(found()))
            (line,) = found()
            return line

        async with AsyncClient(daemon.target) as client, AsyncAdmin(f"unix:{daemon.admin}") as admin:

            async def ended(request_id: str) -> dict[str, object]:
                options = GenerateOptions(max_tokens=7, request_id=request_id)
                await client.generate_once(TokenPrompt([1, 2, 3]), options)
                return logged("request_ended", request_id=request_id)

            line = await ended("a")
            assert (line["process"], line["generation"], line["step"]) == ("front", 0, 7)
            assert (line["reason"], line["prompt_tokens"], line["generated_tokens"]) == ("length", 3, 7)
            await admin.swap("latency-guarantee")
            swapped = logged("policy_swapped", policy="latency-guarantee")
            assert (swapped["process"], swapped["generation"]) == ("front", 1)
            line = await ended("b")
            assert (line["generation"], line["step"]) == (1, 14)
