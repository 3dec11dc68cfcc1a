"""Clients of an inflightd daemon: for inference, for its operator, on the command line and under load.

Names are imported when they are first used, so that the command line starts without gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inflightd.clients.access import Access
    from inflightd.clients.admin import AsyncAdmin
    from inflightd.clients.client import AsyncClient, GenerateStream
    from inflightd.clients.errors import (
        AccessDeniedError,
        AccessError,
        ClientError,
        FieldViolation,
        ServerError,
        TargetError,
        UnavailableError,
    )
    from inflightd.clients.prompts import ChatMessage, ChatPrompt, GenerateOptions, TextPrompt, TokenPrompt
    from inflightd.clients.results import Choice, Delta, Generation, Model, Timings, Usage
    from inflightd.clients.status import SchedulerPolicy, Status, SwapResult

_MODULE_OF = {
    "Access": "access",
    "AccessDeniedError": "errors",
    "AccessError": "errors",
    "AsyncAdmin": "admin",
    "AsyncClient": "client",
    "ChatMessage": "prompts",
    "ChatPrompt": "prompts",
    "Choice": "results",
    "ClientError": "errors",
    "Delta": "results",
    "FieldViolation": "errors",
    "GenerateOptions": "prompts",
    "GenerateStream": "client",
    "Generation": "results",
    "Model": "results",
    "SchedulerPolicy": "status",
    "ServerError": "errors",
    "UnavailableError": "errors",
    "Status": "status",
    "SwapResult": "status",
    "TargetError": "errors",
    "TextPrompt": "prompts",
    "Timings": "results",
    "TokenPrompt": "prompts",
    "Usage": "results",
}

__all__ = [
    "Access",
    "AccessDeniedError",
    "AccessError",
    "AsyncAdmin",
    "AsyncClient",
    "ChatMessage",
    "ChatPrompt",
    "Choice",
    "ClientError",
    "Delta",
    "FieldViolation",
    "GenerateOptions",
    "GenerateStream",
    "Generation",
    "Model",
    "SchedulerPolicy",
    "ServerError",
    "Status",
    "SwapResult",
    "TargetError",
    "TextPrompt",
    "Timings",
    "TokenPrompt",
    "UnavailableError",
    "Usage",
]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
