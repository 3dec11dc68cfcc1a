"""The blocks of a paged KV cache drawn as squares: who holds which, how full each is, what is shared or cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from inflightd.profiling.svg import LETTER_PX, Drawing


@dataclass(frozen=True, slots=True)
class Block:
    """One block of the pool.  Held by nobody it is free, or cached: its content would be found again."""

    holders: Sequence[str] = ()  # names of sequences
    filled_tokens: int = 0
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool at one moment, block 0 first, and the block table of each sequence that holds blocks."""

    caption: str
    block_size_tokens: int
    blocks: Sequence[Block]
    tables: Sequence[tuple[str, Sequence[int]]] = ()


_WIDTH, _MARGIN, _SQUARE, _GAP, _CAPTION, _LINE = 880, 12, 40, 6, 22, 17
_COLOURS: Final = ("sky", "orange", "green", "purple", "yellow", "red")
_PER_ROW: Final = (_WIDTH - 2 * _MARGIN) // (_SQUARE + _GAP)


def draw_pools(title: str, pools: Sequence[Pool]) -> str:
    """One picture, the pools under each other; a sequence has the same colour in all of them."""
    names = list(dict.fromkeys(name for pool in pools for block in pool.blocks for name in block.holders))
    colours = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(names)}
    heights = [_height(pool) for pool in pools]
    captions = "; ".join(pool.caption for pool in pools)
    drawing = Drawing(
        _WIDTH, 2 * _MARGIN + 26 + sum(heights), title, f"{title}. A square per KV block, with its number. {captions}."
    )
    _legend(drawing, pools)
    top = float(_MARGIN + 26)
    for pool, height in zip(pools, heights, strict=True):
        _panel(drawing, pool, colours, top)
        top += height
    return drawing.source()


def _height(pool: Pool) -> int:
    rows = -(-len(pool.blocks) // _PER_ROW)
    return _CAPTION + rows * (_SQUARE + _GAP) + _LINE * len(pool.tables) + 14


def _panel(drawing: Drawing, pool: Pool, colours: dict[str, str], top: float) -> None:
    drawing.text(_MARGIN, top + 12, pool.caption, "strong")
    top += _CAPTION
    for number, block in enumerate(pool.blocks):
        row, column = divmod(number, _PER_ROW)
        x, y = _MARGIN + column * (_SQUARE + _GAP), top + row * (_SQUARE + _GAP)
        _square(drawing, x, y, block, pool.block_size_tokens, colours)
        is_free = not (block.holders or block.cached)
        drawing.text(x + _SQUARE - 3, y + _SQUARE - 4, str(number), "faint right" if is_free else "in right")
    top += -(-len(pool.blocks) // _PER_ROW) * (_SQUARE + _GAP) + 10
    for name, blocks in pool.tables:
        drawing.text(_MARGIN, top, f"block table of {name}:  {'  '.join(map(str, blocks))}")
        top += _LINE


def _square(drawing: Drawing, x: float, y: float, block: Block, size_tokens: int, colours: dict[str, str]) -> None:
    filled = _SQUARE * block.filled_tokens / size_tokens
    if block.holders:
        tip = f"{', '.join(block.holders)}: {block.filled_tokens} of {size_tokens} tokens"
        colour = colours[block.holders[0]]
        drawing.rect(x, y, _SQUARE, _SQUARE, f"{colour} pale", tip=tip)
        drawing.rect(x, y, filled, _SQUARE, colour, tip=tip)
        if len(block.holders) > 1:
            drawing.rect(x, y, _SQUARE, _SQUARE, "hatched pale")
        shared = len(block.holders) > 1
        drawing.text(x + 4, y + 14, f"x{len(block.holders)}" if shared else block.holders[0], "in strong")
    elif block.cached:
        drawing.rect(x, y, filled, _SQUARE, "grey pale", tip=f"cached: {block.filled_tokens} tokens")
    drawing.rect(x, y, _SQUARE, _SQUARE, "outline")


def _legend(drawing: Drawing, pools: Sequence[Pool]) -> None:
    blocks = [block for pool in pools for block in pool.blocks]
    size_tokens = pools[0].block_size_tokens
    entries = [("held, full", Block(("",), size_tokens)), ("held, partly filled", Block(("",), size_tokens // 2))]
    if any(len(block.holders) > 1 for block in blocks):
        entries.append(("shared (x2: by two)", Block(("", ""), size_tokens)))
    if any(block.cached and not block.holders for block in blocks):
        entries.append(("cached, held by nobody", Block((), size_tokens, cached=True)))
    entries.append(("free", Block()))
    x = float(_MARGIN)
    for said, block in entries:
        _swatch(drawing, x, block, size_tokens)
        drawing.text(x + 21, _MARGIN + 9, said)
        x += 21 + len(said) * LETTER_PX + 16
    drawing.text(_WIDTH - _MARGIN, _MARGIN + 9, f"a block holds {size_tokens} tokens", "faint right")


def _swatch(drawing: Drawing, x: float, block: Block, size_tokens: int) -> None:
    side, y = 15.0, _MARGIN - 3.0
    if block.holders:
        drawing.rect(x, y, side, side, "sky pale")
        drawing.rect(x, y, side * block.filled_tokens / size_tokens, side, "sky")
        if len(block.holders) > 1:
            drawing.rect(x, y, side, side, "hatched pale")
    elif block.cached:
        drawing.rect(x, y, side, side, "grey pale")
    drawing.rect(x, y, side, side, "outline")
