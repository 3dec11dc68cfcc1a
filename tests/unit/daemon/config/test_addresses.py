"""Listen addresses, and places that nobody named."""

import os

import pytest

from inflightd.daemon.config.addresses import Address, default_admin_socket, default_trace_dir, parse_address


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("127.0.0.1:9090", Address(host="127.0.0.1", port=9090), True),
        ("127.3.2.1:0", Address(host="127.3.2.1", port=0), True),
        ("localhost:1", Address(host="localhost", port=1), True),
        ("[::1]:1", Address(host="::1", port=1), True),
        ("0.0.0.0:1", Address(host="0.0.0.0", port=1), False),
        ("[::]:1", Address(host="::", port=1), False),
        ("gpu7:1", Address(host="gpu7", port=1), False),
        ("unix:/run/x.sock", Address(path="/run/x.sock"), True),
    ],
)
def test_forms_are_read_and_written_alike(text: str, address: Address, loopback: bool) -> None:
    assert parse_address(text) == address
    assert str(address) == text
    assert address.loopback is loopback


@pytest.mark.parametrize(
    "text", ["", "9090", "localhost", "::1:80", "a:b", "h:70000", "[1.2.3.4]:1", "unix:", "unix:/" + "x" * 107]
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_address(text)


def test_the_admin_socket_is_where_the_service_or_the_user_has_its_runtime_files() -> None:
    both = {"RUNTIME_DIRECTORY": "/run/a:/run/b", "XDG_RUNTIME_DIR": "/run/user/1"}
    assert default_admin_socket(both) == "/run/a/inflightd/admin.sock"
    assert default_admin_socket({"XDG_RUNTIME_DIR": "/run/user/1"}) == "/run/user/1/inflightd/admin.sock"
    assert default_admin_socket({}).startswith("/tmp/inflightd-")


def test_traces_go_to_the_services_state_then_to_the_users() -> None:
    home = {"HOME": "/home/someone"}
    assert default_trace_dir({**home, "STATE_DIRECTORY": "/var/lib/inflightd:/b"}) == "/var/lib/inflightd/traces"
    assert default_trace_dir({**home, "XDG_STATE_HOME": "/state"}) == "/state/inflightd/traces"
    assert default_trace_dir(home) == "/home/someone/.local/state/inflightd/traces"
    assert default_trace_dir({}) == f"/tmp/inflightd-{os.getuid()}/traces"
