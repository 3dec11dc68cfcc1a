"""An address that this machine cannot listen on."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.support.daemons import INFLIGHTD


# Reserved for documentation: no machine has them.
@pytest.mark.parametrize(
    ("option", "address"), [("--listen", "192.0.2.1:9090"), ("--metrics-listen", "[2001:db8::1]:9090")]
)
def test_it_ends_the_start_before_the_load_naming_address_and_errno(address: str, option: str, tmp_path: Path) -> None:
    """Case D03: not by a configuration error, which nobody would try again."""
    options = ["--engine", "scripted", "--scripted-load-ms", "60000", "--insecure", "--admin-socket", f"{tmp_path}/a"]
    others = [] if option == "--listen" else ["--listen", "127.0.0.1:0"]
    began_s = time.monotonic()
    done = subprocess.run(
        [INFLIGHTD, "serve", *options, *others, option, address],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert f"cannot listen on {address}: EADDRNOTAVAIL" in done.stderr
    assert "Traceback" not in done.stderr
    assert "ready" not in done.stdout + done.stderr
    assert time.monotonic() - began_s < 5
