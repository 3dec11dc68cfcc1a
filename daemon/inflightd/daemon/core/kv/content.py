"""What a full block holds, as an object: two blocks hold the same keys and values if it is the same object."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final
from weakref import ref

NO_BLOCK: Final = -1
KEY_BYTES: Final = 32
_DIGEST_BYTES: Final = 16

Digest = Callable[[bytes, bytes], bytes]  # (digest of what goes before, data) -> at least 16 bytes


class BlockContent:
    """The tokens of one full block after all the tokens before it, which `parent` stands for, and under one salt.

    The parent of a sequence's first block is the salt itself, which no block holds.
    """

    __slots__ = ("__weakref__", "_known", "block", "data", "digest", "parent", "pending")

    def __init__(self, digest: bytes, data: bytes, parent: BlockContent | None, known: Known) -> None:
        self.digest = digest
        self.data = data
        self.parent = parent
        self._known = known  # where it is listed, until nobody refers to it
        self.block = NO_BLOCK  # where it is found; written by `BlockPool` only
        self.pending = 0  # running sequences that are going to compute it; written by `PrefixCache` only

    def __del__(self) -> None:
        self._known.pop(self.digest, None)


Known = dict[bytes, "ref[BlockContent]"]


def keyed_digest(key: bytes | None = None) -> Digest:
    """BLAKE2b of 128 bits under a key of 32 bytes, which nobody outside the process knows if none is given.

    So nobody can make two prompts with one digest (vLLM's unseeded hash could be forced: CVE-2025-25183).
    """
    blank = hashlib.blake2b(digest_size=_DIGEST_BYTES, key=os.urandom(KEY_BYTES) if key is None else key)

    def digest(before: bytes, data: bytes) -> bytes:
        hasher = blank.copy()
        hasher.update(b"%c%b%b" % (len(before), before, data))  # with a length, so that the two cannot be confused
        return hasher.digest()

    return digest


@lru_cache
def _packing(tokens: int) -> Struct:
    """4 bytes a token.  (An array takes three times as long, and every block that is filled passes through here.)"""
    return Struct(f"={tokens}I")


class Contents:
    """All contents that somebody has a reference to, each of them once.

    They are found by a digest chained over the parent's digest and the block's tokens, and then compared: with an
    equal digest and other tokens, or another parent, a content is an object of its own that is never found.
    """

    def __init__(self, digest: Digest | None = None) -> None:
        self._digest = digest or keyed_digest()
        self._known: Known = {}

    def salt(self, text: str | None) -> BlockContent:
        """What the first block of a sequence goes after.  No salt and an empty one are two."""
        data = b"none" if text is None else b"text" + text.encode("utf-8", "surrogatepass")
        return self._intern(b"", data, None)

    def block(self, parent: BlockContent, token_ids: Sequence[int]) -> BlockContent:
        """The content of a block with these tokens after `parent`."""
        return self._intern(parent.digest, _packing(len(token_ids)).pack(*token_ids), parent)

    def _intern(self, before: bytes, data: bytes, parent: BlockContent | None) -> BlockContent:
        digest = self._digest(before, data)
        listed = self._known.get(digest)
        if listed is None:
            content = BlockContent(digest, data, parent, self._known)
            self._known[digest] = ref(content)
            return content
        known = listed()
        if known is not None and known.parent is parent and known.data == data:
            return known
        return BlockContent(digest, data, parent, {})
