"""The tokens file: what an entry may say, and that no error quotes a token."""

from __future__ import annotations

import timeit
from hashlib import sha256

import pytest

from inflightd.daemon.access.permission import permitted
from inflightd.daemon.access.tokens import Caller, TokenTable, parse_tokens
from inflightd.daemon.errors import ConfigError, PermissionDenied, Unauthenticated
from inflightd.daemon.front.request import GenerateRequest, TokenPrompt
from inflightd.daemon.rpc.authentication import check_scope, identified

TOKEN = "canary0123456789canary0123456789"
OTHER = "other00123456789other00123456789"
CLASSES = ("default", "batch")


def parsed(text: str) -> dict[bytes, Caller]:
    return parse_tokens(text.encode(), "t.toml", CLASSES)


def entry(name: str = "web", token: str = TOKEN, more: str = "") -> str:
    return f'[{name}]\ntoken = "{token}"\nscopes = ["infer"]\n{more}\n'


def test_a_token_is_found_by_itself_or_by_its_hash() -> None:
    hashed = f'[ops]\nsha256 = "{sha256(OTHER.encode()).hexdigest()}"\nscopes = ["control", "gateway"]\n'
    table = TokenTable(parsed(entry(more='tenant = "acme"\nclasses = ["batch"]') + hashed))
    assert len(table) == 2
    assert table.caller(TOKEN.encode()) == Caller("web", "acme", frozenset({"infer"}), frozenset({"batch"}))
    ops = table.caller(OTHER.encode())
    assert ops is not None
    assert ops.tenant == "ops", "callers without a tenant share no cache"
    for stranger in (b"", TOKEN[:-1].encode(), TOKEN.encode() + b"x", TOKEN.upper().encode(), b"\xff" * 32):
        assert table.caller(stranger) is None
    table.replace(parsed(entry(token=OTHER)))
    assert table.caller(TOKEN.encode()) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no token"),
        ("x = 1", "object"),
        (entry(more="tenat = 'x'"), "unknown field `tenat`"),
        (entry(more='classes = ["gold"]'), "no such service class: gold"),
        (entry(token=TOKEN[1:]), "32 to 1024"),
        (entry(token=TOKEN + " x"), "32 to 1024"),
        (entry(more='tenant = ""'), "1 to 256"),
        (entry(more=f'sha256 = "{"0" * 64}"'), "either token or sha256"),
        ('[web]\nscopes = ["infer"]\n', "either token or sha256"),
        (f'[web]\nscopes = ["infer"]\nsha256 = "{"A" * 64}"\n', "0-9a-f"),
        (f'[web]\nscopes = []\ntoken = "{TOKEN}"\n', "allows nothing"),
        (f'[web]\nscopes = ["admin"]\ntoken = "{TOKEN}"\n', "admin"),
        (f"[web]\nscopes = ['infer']\ntoken = '{TOKEN}", "not valid TOML"),
        (f'[web]\nscopes = ["infer"]\ntoken = ["{TOKEN}"]\n', "Expected `str | null`"),
        (entry() + entry("again"), "again and web have the same token"),
        (entry('"a b"'), "the name of an entry"),
        (entry(f'"{TOKEN * 4}"'), "the name of an entry"),
    ],
)
def test_a_wrong_file_is_refused_without_quoting_it(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parsed(text)
    assert reason in str(refused.value)
    assert refused.value.field == "tokens_file"
    assert "canary" not in str(refused.value)


TABLE = TokenTable(parsed(entry()))


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        (),
        (("x", "y"),),
        (("authorization", ""),),
        (("authorization", TOKEN),),
        (("authorization", f"Basic {TOKEN}"),),
        (("authorization", f"Bearer {OTHER}"),),
        (("authorization", b"Bearer \xff\xfe"),),
        (("authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {TOKEN}")),
    ],
)
def test_metadata_without_one_known_token_is_nobody(metadata: object) -> None:
    with pytest.raises(Unauthenticated) as refused:
        identified(metadata, TABLE)
    assert "canary" not in str(refused.value)
    assert "other" not in str(refused.value)


def test_the_scheme_is_read_whatever_its_case() -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert identified((("authorization", f"{scheme} {TOKEN}"),), TABLE).name == "web"


@pytest.mark.parametrize(
    ("scope", "inference", "control"),
    [("infer", True, False), ("gateway", True, False), ("control", False, True)],
)
def test_a_scope_opens_its_own_service(scope: str, inference: bool, control: bool) -> None:
    caller = Caller("c", "c", frozenset({scope}), frozenset())  # type: ignore[arg-type]
    for service, allowed in (("inflightd.v1.Inference", inference), ("inflightd.v1.Control", control)):
        if allowed:
            check_scope(caller, service)
        else:
            with pytest.raises(PermissionDenied, match="has not the scope"):
                check_scope(caller, service)


def asked(tenant: str = "", service_class: str = "") -> GenerateRequest:
    return GenerateRequest(prompt=TokenPrompt([1]), tenant=tenant, service_class=service_class, arrival_ns=0)


def test_the_tenant_is_the_tokens_unless_a_gateway_names_one() -> None:
    plain = Caller("p", "acme", frozenset({"infer"}), frozenset())
    gateway = Caller("g", "edge", frozenset({"gateway"}), frozenset())
    assert permitted(asked(), plain).tenant == "acme"
    assert permitted(asked("acme"), plain).tenant == "acme"
    with pytest.raises(PermissionDenied, match="of another tenant"):
        permitted(asked("globex"), plain)
    assert permitted(asked("globex"), gateway).tenant == "globex"
    assert permitted(asked(), gateway).tenant == "edge"


def test_classes_are_the_tokens() -> None:
    caller = Caller("p", "acme", frozenset({"infer"}), frozenset({"batch"}))
    assert permitted(asked(service_class="batch"), caller).service_class == "batch"
    for other in ("", "default"):
        with pytest.raises(PermissionDenied, match="is for batch only"):
            permitted(asked(service_class=other), caller)


def test_who_calls_is_found_in_microseconds() -> None:
    """A token message costs the front some 30 us; a call is many of them."""
    metadata = (("user-agent", "x"), ("authorization", f"Bearer {TOKEN}"))
    many = TokenTable({sha256(bytes([i, j])).digest(): TABLE_CALLER for i in range(100) for j in range(100)})
    many.replace({**{sha256(bytes([i, j])).digest(): TABLE_CALLER for i in range(100) for j in range(100)}, **PARSED})
    seconds = min(timeit.repeat(lambda: identified(metadata, many), number=1000, repeat=5))
    assert seconds / 1000 < 50e-6


PARSED = parsed(entry())
TABLE_CALLER = next(iter(PARSED.values()))
