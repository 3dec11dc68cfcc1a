"""What is the same, and what is not, in the next life of the daemon."""

from __future__ import annotations

from inflightd.clients.client import AsyncClient
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from tests.support.daemons import running_daemon

Tokens = tuple[int, ...]
EQUALLY_LIKELY = 64


async def one_life() -> tuple[Tokens, Tokens]:
    """Of a daemon started for this: the tokens with a seed, and those without."""
    # The bias lifts these above what the script would have said: each token is drawn.
    bias = dict.fromkeys(range(100, 100 + EQUALLY_LIKELY), 100.0)
    with running_daemon("--engine", "scripted", "--kv-blocks", "64") as daemon:
        async with AsyncClient(daemon.target) as client:

            async def said(seed: int | None) -> Tokens:
                asked = GenerateOptions(seed=seed, temperature=1.0, max_tokens=40, logit_bias=bias)
                answer = await client.generate_once(TokenPrompt([1, 2, 3]), asked)
                return answer.choices[0].token_ids

            return await said(11), await said(None)


async def test_a_seed_gives_the_same_tokens_after_a_restart_of_the_daemon_and_no_seed_others() -> None:
    """Case E14."""
    first, second = await one_life(), await one_life()
    assert first[0] == second[0]
    assert len(set(first[0])) > EQUALLY_LIKELY // 4
    assert set(first[0]) <= set(range(100, 100 + EQUALLY_LIKELY))
    assert len({first[0], first[1], second[1]}) == 3
