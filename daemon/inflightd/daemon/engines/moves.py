"""Block moves as ranges: one for each run of the same kind, in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from inflightd.daemon.engines.api import BlockMove, MoveKind
from inflightd.profiling.ranges import SWAP_IN, SWAP_OUT

if TYPE_CHECKING:
    from inflightd.profiling.ranges import Ranges

_NAMES: Final = {MoveKind.OUT: SWAP_OUT, MoveKind.IN: SWAP_IN}  # copies within the device are no swap


def do_moves(
    moves: Sequence[BlockMove], move_blocks: Callable[[Sequence[BlockMove]], None], ranges: Ranges | None
) -> None:
    """Do `moves` in their order: all in one call if nobody traces, else a call for each run of a kind."""
    if ranges is None:
        move_blocks(moves)
        return
    for kind, group in groupby(moves, key=itemgetter(0)):
        run = list(group)
        name = _NAMES.get(kind)
        if name is None:
            move_blocks(run)
            continue
        ranges.push(name, len(run))
        move_blocks(run)
        ranges.pop()
