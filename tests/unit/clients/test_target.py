"""Addresses (case D06)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inflightd.clients.errors import TargetError
from inflightd.clients.target import default_admin, default_admin_path, default_target, parse_admin, parse_target


@pytest.mark.parametrize(
    ("text", "grpc_address", "loopback"),
    [
        ("127.0.0.1:9090", "ipv4:127.0.0.1:9090", True),
        ("0.0.0.0:1", "ipv4:0.0.0.0:1", False),
        ("[::]:9090", "ipv6:[::]:9090", False),
        ("[::1]:9090", "ipv6:[::1]:9090", True),
        ("localhost:65535", "dns:///localhost:65535", True),
        ("gpu-host.example:9090", "dns:///gpu-host.example:9090", False),
        ("unix:/run/a.sock", "unix:/run/a.sock", True),
        ("unix:///run/a.sock", "unix:/run/a.sock", True),
        ("unix:/run/a%41 #?.sock", "unix:/run/a%2541%20%23%3F.sock", True),
    ],
)
def test_every_form_becomes_an_address_of_its_own_family(text: str, grpc_address: str, loopback: bool) -> None:
    target = parse_target(text)
    assert target.grpc_address == grpc_address
    assert target.is_loopback is loopback
    assert parse_target(str(target)) == target


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("localhost", "no port"),
        ("", "no port"),
        ("::1:9090", "in brackets, as"),
        ("[127.0.0.1]:9090", "not an IPv6 address"),
        ("[nonsense]:9090", "not an IPv6 address"),
        (":9090", "no host"),
        ("host:", "port ''"),
        ("host:0", "port '0'"),
        ("host:65536", "port '65536'"),
        ("host:+1", "port"),
        ("host:²", "port"),
        ("http://host:80", "in brackets"),
        ("a b:80", "not a host name"),
        ("unix:", "no path"),
        ("unix:/" + "x" * 107, "at most 107 bytes"),
    ],
)
def test_a_wrong_address_says_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(TargetError) as caught:
        parse_target(text)
    assert reason in str(caught.value)


def test_a_relative_socket_path_is_taken_from_here() -> None:
    assert parse_target("unix:a.sock").path == str(Path.cwd() / "a.sock")


@pytest.mark.parametrize("text", ["/run/a.sock", "unix:/run/a.sock"])
def test_the_admin_address_may_be_a_plain_path(text: str) -> None:
    assert parse_admin(text).path == "/run/a.sock"
    assert parse_admin("a.sock").is_unix
    assert parse_admin("127.0.0.1:9091").port == 9091


def test_the_environment_stands_in_for_the_flags() -> None:
    assert default_target({}).grpc_address == "ipv4:127.0.0.1:9090"
    assert default_target({"INFLIGHTD_TARGET": "[::1]:7"}).grpc_address == "ipv6:[::1]:7"
    assert default_admin({"INFLIGHTD_ADMIN": "/x/y", "XDG_RUNTIME_DIR": "/run/user/1"}).path == "/x/y"


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({"RUNTIME_DIRECTORY": "/run/a", "XDG_RUNTIME_DIR": "/run/user/1"}, "/run/a/inflightd/admin.sock"),
        ({"RUNTIME_DIRECTORY": "/run/a:/run/b"}, "/run/a/inflightd/admin.sock"),
        ({"XDG_RUNTIME_DIR": "/run/user/1"}, "/run/user/1/inflightd/admin.sock"),
        ({"RUNTIME_DIRECTORY": "", "XDG_RUNTIME_DIR": ""}, f"/tmp/inflightd-{os.getuid()}/admin.sock"),
    ],
)
def test_the_admin_socket_is_under_the_runtime_directory(environment: dict[str, str], path: str) -> None:
    assert default_admin_path(environment) == Path(path)
    assert default_admin(environment).path == path
