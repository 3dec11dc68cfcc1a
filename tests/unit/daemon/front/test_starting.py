"""What the engine process is told of the configuration."""

from __future__ import annotations

from pathlib import Path

from inflightd.daemon.config import load_config
from inflightd.daemon.core.wire import Start
from inflightd.daemon.front.starting import start_message

TOML = """
engine = "scripted"
kv_blocks = 7
prefix_cache = false
swap_memory = 0
plan_limit_ms = 12.5
[classes.chat]
priority = 3
itl_ms = 50
max_prompt_tokens = 4000
[scripted]
host_blocks = 5
"""


def start(toml: str, tmp_path: Path) -> Start:
    path = tmp_path / "inflightd.toml"
    path.write_text(toml)
    return start_message(load_config(path, {}, {}), "", "m", "json")


def test_settings_arrive_in_the_units_of_the_loop(tmp_path: Path) -> None:
    message = start(TOML, tmp_path)
    assert (message.kv.blocks, message.kv.prefix_cache, message.kv.swap_bytes) == (7, False, 0)
    assert message.plan_limit_ns == 12_500_000
    assert message.scripted.host_blocks == 5
    default, chat = message.classes
    assert (default.name, default.max_prompt_tokens, default.itl_ns) == ("default", None, None)
    assert (chat.name, chat.priority, chat.itl_ns, chat.max_prompt_tokens) == ("chat", 3, 50_000_000, 4000)


def test_by_default_prefixes_are_cached_and_the_engine_chooses_its_swap_pool(tmp_path: Path) -> None:
    message = start("engine = 'scripted'", tmp_path)
    assert (message.kv.prefix_cache, message.kv.swap_bytes, message.plan_limit_ns) == (True, None, 1_000_000_000)
