"""Bearer tokens: each is one caller, with a tenant, scopes and service classes.

The daemon keeps hashes only.  A token is looked up by a hash under a key of the process, so that how long it takes says
nothing about the tokens there are; what is found is compared in constant time.
"""

from __future__ import annotations

import re
import secrets
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b, sha256
from hmac import compare_digest
from typing import Final, Literal

import msgspec

from inflightd.daemon.errors import ConfigError

Scope = Literal["infer", "gateway", "control"]

MIN_TOKEN_CHARS, MAX_TOKEN_CHARS = 32, 1024
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # what may stand after "Bearer", RFC 6750
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TENANT: Final = re.compile(r"[ -~]{1,256}")
_Refusal = Callable[[str], ConfigError]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a token stands for.  `name` is its entry's in the file and no secret."""

    name: str
    tenant: str
    scopes: frozenset[Scope]
    classes: frozenset[str]  # service classes it may ask for; empty: all


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    scopes: list[Scope]
    token: str | None = None
    sha256: str | None = None
    tenant: str | None = None
    classes: list[str] = []


def parse_tokens(text: bytes, path: str, known_classes: Collection[str]) -> dict[bytes, Caller]:
    """Callers by the SHA-256 of their tokens.  Raises `ConfigError` about `path`; the reason never quotes a token."""

    def refusal(reason: str) -> ConfigError:
        return ConfigError("tokens_file", path, reason)

    try:
        entries = msgspec.convert(tomllib.loads(text.decode()), dict[str, _Entry])
    except msgspec.ValidationError as error:
        raise refusal(str(error)) from None
    except (ValueError, RecursionError):  # its text might quote the line
        raise refusal("not valid TOML") from None
    if not entries:
        raise refusal("there is no token in it")
    callers: dict[bytes, Caller] = {}
    for name, entry in entries.items():
        if not _NAME.fullmatch(name):
            raise refusal("the name of an entry is of letters, digits, '.', '_' and '-', at most 63")
        if not entry.scopes:
            raise refusal(f"{name}: scopes = [] allows nothing")
        if unknown := sorted(set(entry.classes) - set(known_classes)):
            raise refusal(f"{name}: no such service class: {', '.join(unknown)}")
        tenant = name if entry.tenant is None else entry.tenant
        if not _TENANT.fullmatch(tenant):
            raise refusal(f"{name}: a tenant has 1 to 256 printable ASCII characters")
        digest = _digest(entry, name, refusal)
        if digest in callers:
            raise refusal(f"{name} and {callers[digest].name} have the same token")
        callers[digest] = Caller(name, tenant, frozenset(entry.scopes), frozenset(entry.classes))
    return callers


def _digest(entry: _Entry, name: str, refusal: _Refusal) -> bytes:
    if (entry.token is None) == (entry.sha256 is None):
        raise refusal(f"{name}: give either token or sha256")
    if entry.sha256 is not None:
        if not _SHA256.fullmatch(entry.sha256):
            raise refusal(f"{name}: sha256 has 64 of the characters 0-9a-f")
        return bytes.fromhex(entry.sha256)
    assert entry.token is not None
    if not MIN_TOKEN_CHARS <= len(entry.token) <= MAX_TOKEN_CHARS or not _TOKEN.fullmatch(entry.token):
        raise refusal(
            f"{name}: a token has {MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} of the characters A-Z a-z 0-9 . _ ~ + / -"
        )
    return sha256(entry.token.encode()).digest()


class TokenTable:
    """The tokens in force.  May be replaced as a whole while it is used."""

    def __init__(self, callers: Mapping[bytes, Caller]) -> None:
        self._key = secrets.token_bytes(32)
        self.replace(callers)

    def __len__(self) -> int:
        return len(self._places)

    def replace(self, callers: Mapping[bytes, Caller]) -> None:
        """From now on these and no others."""
        self._places = {self._place(digest): (digest, caller) for digest, caller in callers.items()}

    def caller(self, token: bytes) -> Caller | None:
        """Whose `token` is; None: nobody's."""
        digest = sha256(token).digest()
        found = self._places.get(self._place(digest))
        return found[1] if found is not None and compare_digest(found[0], digest) else None

    def _place(self, digest: bytes) -> bytes:
        return blake2b(digest, digest_size=16, key=self._key).digest()
