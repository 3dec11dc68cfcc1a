"""A model of a paged KV cache's contents, which finds out whether the blocks a step reads hold what they should.

The keys and values at a position depend on all tokens up to it.  So a slot holds the number of a prefix, numbers are
given to (number of the prefix without its last token, last token), and a block table is right if its slots are one
chain.  Prefixes are interned: two are the same if and only if their numbers are.  What a host block holds is gone once
it has been brought back, so that it cannot come back twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inflightd.daemon.engines.api import MoveKind, Row, StepBatch
from inflightd.daemon.errors import EngineError

_EMPTY_PREFIX = 0
_NEVER_WRITTEN = -1


class CacheModel:
    """All blocks of one engine.  Each fault raises `EngineError` naming the step, the sequence and what is wrong."""

    def __init__(self, blocks_total: int, block_size_tokens: int, vocab_size: int, host_blocks_total: int = 0) -> None:
        self._block_size_tokens = block_size_tokens
        self._vocab_size = vocab_size
        self._slots = np.full((blocks_total, block_size_tokens), _NEVER_WRITTEN, np.int64)
        self._host_slots = np.full((host_blocks_total, block_size_tokens), _NEVER_WRITTEN, np.int64)
        self._prefixes: dict[tuple[int, int], int] = {}
        self._parents: NDArray[np.int64] = np.array([_EMPTY_PREFIX], np.int64)  # of each prefix, by number
        self._tokens: list[int] = [-1]  # the last token of each

    def run(self, batch: StepBatch) -> None:
        """Do what `batch` does to the cache.  Everything is written before anything is read, as in each layer of a
        model, so a row that writes into another's blocks spoils them in the same step.
        """
        self._move(batch)
        tables, chains = [], []
        seen: set[int] = set()
        for row in batch.rows:
            if row.sequence in seen:
                raise self._fault(batch, row, "is in the batch twice")
            seen.add(row.sequence)
            table = self._table(batch, row)
            tables.append(table)
            chains.append(self._chain(batch, row, table))
        for row, table, chain in zip(batch.rows, tables, chains, strict=True):
            places = np.arange(row.past_tokens, row.past_tokens + len(chain))
            self._slots[table[places // self._block_size_tokens], places % self._block_size_tokens] = chain
        for row, table, chain in zip(batch.rows, tables, chains, strict=True):
            self._check(batch, row, table, chain[-1])

    def _move(self, batch: StepBatch) -> None:
        device, host = self._slots, self._host_slots
        for kind, source, destination in batch.moves:
            origin = host if kind is MoveKind.IN else device
            target = host if kind is MoveKind.OUT else device
            where = f"step {batch.step}: {kind.name} of block {source} to {destination}"
            if not (0 <= source < len(origin) and 0 <= destination < len(target)):
                raise EngineError(f"{where}: outside 0..{len(origin) - 1} and 0..{len(target) - 1}")
            if kind is not MoveKind.COPY and origin[source, 0] == _NEVER_WRITTEN:
                raise EngineError(f"{where}: there is nothing in it")
            target[destination] = origin[source]
            if kind is MoveKind.IN:
                origin[source] = _NEVER_WRITTEN

    def _table(self, batch: StepBatch, row: Row) -> NDArray[np.int64]:
        """The blocks the row needs."""
        if not row.token_ids or row.past_tokens < 0:
            raise self._fault(batch, row, f"has {len(row.token_ids)} tokens after {row.past_tokens}")
        outside = [token for token in row.token_ids if not 0 <= token < self._vocab_size]
        if outside:
            raise self._fault(batch, row, f"has token {outside[0]} of a vocabulary of {self._vocab_size}")
        needed = -(-(row.past_tokens + len(row.token_ids)) // self._block_size_tokens)
        table = np.array(row.block_table[:needed], np.int64)
        if len(table) < needed:
            raise self._fault(batch, row, f"needs {needed} blocks and has {len(table)}")
        if table.min() < 0 or table.max() >= len(self._slots):
            raise self._fault(batch, row, f"has a block outside 0..{len(self._slots) - 1}: {table.tolist()}")
        if len(np.unique(table)) < needed:
            raise self._fault(batch, row, f"has a block twice: {table.tolist()}")
        return table

    def _chain(self, batch: StepBatch, row: Row, table: NDArray[np.int64]) -> list[int]:
        """The prefixes that the row's tokens make, continuing what its last past slot holds before the step."""
        prefix = _EMPTY_PREFIX
        if row.past_tokens:
            block, slot = divmod(row.past_tokens - 1, self._block_size_tokens)
            prefix = int(self._slots[table[block], slot])
            if prefix == _NEVER_WRITTEN:
                raise self._fault(batch, row, f"counts {row.past_tokens} past tokens, the last was never written")
        chain = []
        for token in row.token_ids:
            prefix = self._intern(prefix, token)
            chain.append(prefix)
        return chain

    def _intern(self, prefix: int, token: int) -> int:
        number = self._prefixes.setdefault((prefix, token), len(self._tokens))
        if number == len(self._tokens):
            if number == len(self._parents):
                self._parents = np.concatenate((self._parents, np.zeros(max(1024, number), np.int64)))
            self._parents[number] = prefix
            self._tokens.append(token)
        return number

    def _check(self, batch: StepBatch, row: Row, table: NDArray[np.int64], last: int) -> None:
        """The row's slots are one chain that ends in `last`; with draws, it is the chain of all its known tokens."""
        end_tokens = row.past_tokens + len(row.token_ids)
        held = self._slots[table].reshape(-1)[:end_tokens]
        before = np.concatenate(([_EMPTY_PREFIX], held[:-1]))
        broken = np.flatnonzero((held == _NEVER_WRITTEN) | (self._parents[held] != before))
        if len(broken) or held[-1] != last:
            place = int(broken[0]) if len(broken) else end_tokens - 1
            what = "was never written" if held[place] == _NEVER_WRITTEN else "belongs to another text"
            block = int(table[place // self._block_size_tokens])
            raise self._fault(batch, row, f"reads position {place} in block {block}, which {what}")
        for draw in row.draws:
            state = draw.state
            known = [*state.prompt_ids, *state.output_ids]
            if draw.position != len(state.output_ids):
                raise self._fault(batch, row, f"draws token {draw.position} after {len(state.output_ids)}")
            if len(known) != end_tokens:
                raise self._fault(batch, row, f"draws with {end_tokens} tokens computed of {len(known)}")
            computed = [self._tokens[prefix] for prefix in held.tolist()]
            if computed != known:
                place = next(at for at, pair in enumerate(zip(computed, known, strict=True)) if pair[0] != pair[1])
                raise self._fault(
                    batch, row, f"computed token {computed[place]} at position {place}, its text has {known[place]}"
                )

    @staticmethod
    def _fault(batch: StepBatch, row: Row, what: str) -> EngineError:
        return EngineError(f"step {batch.step}: sequence {row.sequence} {what}")


def frozen_copy(batch: StepBatch) -> Sequence[object]:
    """What must not change between a step's start and its end."""
    return [tuple(batch.moves), *_frozen_rows(batch.rows)]


def _frozen_rows(rows: Sequence[Row]) -> Sequence[object]:
    return [
        (
            row.sequence,
            tuple(row.token_ids),
            row.past_tokens,
            tuple(row.block_table),
            tuple((id(draw.state), draw.position, len(draw.state.output_ids)) for draw in row.draws),
        )
        for row in rows
    ]
