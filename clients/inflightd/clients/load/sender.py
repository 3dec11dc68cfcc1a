"""How a request of a workload becomes a stream of deltas."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from inflightd.clients.load.workload import LoadRequest
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from inflightd.clients.results import Delta

if TYPE_CHECKING:
    from inflightd.clients.client import AsyncClient

# Benchmarks compare work done, so every request generates what the workload says, the same tokens each time.
GREEDY_TO_THE_END = GenerateOptions(temperature=0.0, ignore_eos=True)


class Sender(Protocol):
    """Called for each request; the request counts as sent at the call.

    Its iterator is cancelled, by cancelling the task that reads it, when the run is.  A ServerError is an outcome of
    the request; any other exception is a bug and ends the run.
    """

    def __call__(self, request: LoadRequest, /) -> AsyncIterator[Delta]: ...


def client_sender(client: AsyncClient, options: GenerateOptions = GREEDY_TO_THE_END) -> Sender:
    """Sends through a gRPC client; the request's own output length, class and tenant go over `options`."""

    def send(request: LoadRequest, /) -> AsyncIterator[Delta]:
        return client.generate(
            TokenPrompt(request.prompt_token_ids),
            replace(
                options,
                max_tokens=request.output_tokens,
                service_class=request.service_class or options.service_class,
                tenant=request.tenant or options.tenant,
                n=1,
            ),
        )

    return send
