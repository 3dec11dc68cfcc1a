"""The `inflightd` command."""

from __future__ import annotations

from inflightd.clients.cli.group import main

__all__ = ["main"]
