"""Where values come from, and what a bad one says."""

import ast
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from inflightd.daemon.config import load_config
from inflightd.daemon.config.catalog import config_fields
from inflightd.daemon.config.options import config_options, flags_given
from inflightd.daemon.errors import ConfigError

SCRIPTED = {"engine": "scripted"}


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "inflightd.toml"
    path.write_text(text)
    return path


def refused(toml: Path | None = None, environ: dict[str, str] | None = None, **flags: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(toml, environ or {}, {**SCRIPTED, **flags})  # type: ignore[dict-item]
    return caught.value


def test_defaults_make_a_configuration() -> None:
    config = load_config(None, {"XDG_RUNTIME_DIR": "/run/user/7"}, SCRIPTED)
    assert (config.max_batch_size, config.max_num_tokens, config.default_max_tokens) == (32, 2048, 256)
    assert config.listen == ["127.0.0.1:9090"]
    assert config.admin_socket == "/run/user/7/inflightd/admin.sock"
    assert list(config.served_classes) == ["default"]


def test_environment_wins_over_the_file_and_flags_win_over_both(tmp_path: Path) -> None:
    toml = written(
        tmp_path, "engine = 'scripted'\nmax_batch_size = 1\nthreads = 1\nkv_blocks = 1\n[scripted]\nstep_ms = 1"
    )
    environ = {"INFLIGHTD_THREADS": "2", "INFLIGHTD_KV_BLOCKS": "2", "INFLIGHTD_SCRIPTED_LOAD_MS": "2.5"}
    config = load_config(toml, environ, {"kv_blocks": "3"})
    assert (config.max_batch_size, config.threads, config.kv_blocks) == (1, 2, 3)
    assert (config.scripted.step_ms, config.scripted.load_ms) == (1.0, 2.5)


@pytest.mark.parametrize("text", ["a = [", "a = " + 5000 * "9", "a = " + 100_000 * "["])
def test_a_file_that_cannot_be_parsed_is_refused_whatever_the_parser_raises(tmp_path: Path, text: str) -> None:
    error = refused(written(tmp_path, text))
    assert error.field == "config"
    assert "not valid TOML" in error.reason


def test_sizes_may_be_written_with_units(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "kv_memory = '2GiB'"), {}, SCRIPTED).kv_memory == 2 << 30
    assert load_config(None, {"INFLIGHTD_KV_MEMORY": "1.5GB"}, SCRIPTED).kv_memory == 1_500_000_000
    assert load_config(None, {}, {**SCRIPTED, "kv_memory": "4096"}).kv_memory == 4096
    assert refused(kv_memory="2 parsecs").field == "kv_memory"


def test_swapping_is_the_engines_choice_unless_a_size_or_none_is_asked_for(tmp_path: Path) -> None:
    real = {"engine": "openvino", "model": "x.gguf"}
    assert load_config(None, {}, real).swap_memory is None
    assert load_config(None, {"INFLIGHTD_SWAP_MEMORY": "1GiB"}, real).swap_memory == 1 << 30
    for none in ("0", "'0'"):
        assert load_config(written(tmp_path, f"swap_memory = {none}"), {}, SCRIPTED).swap_memory == 0
    assert load_config(None, {}, {**SCRIPTED, "swap_memory": "0"}).swap_memory == 0
    assert "scripted.host_blocks" in refused(swap_memory="1GiB").reason
    assert refused(kv_memory="0").field == "kv_memory"


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("max_bach_size = 3", "max_bach_size", "3"),
        ("[scripted]\nstepp_ms = 3", "scripted.stepp_ms", "3"),
        ("[classes.gold]\nprio = 3", "classes.gold.prio", "3"),
        ("[classes.gold]\nkv_share = 1.5", "classes.gold.kv_share", "1.5"),
        ("[classes.gold]\nmax_prompt_tokens = 0", "classes.gold.max_prompt_tokens", "0"),
        ("plan_limit_ms = 60001", "plan_limit_ms", "60001"),
        ("[classes.'Bad Name']\npriority = 1", "classes", "'Bad Name'"),
        ("max_batch_size = '8'", "max_batch_size", "'8'"),
        ("max_batch_size = 0", "max_batch_size", "0"),
        ("kv_dtype = 'f64'", "kv_dtype", "'f64'"),
        ("drain_grace_s = nan", "drain_grace_s", "nan"),
        ("listen = ['localhost']", "listen", "'localhost'"),
        ("listen = []", "listen", "[]"),
        ("listen = ['127.0.0.1:1', '127.0.0.1:1']", "listen", "'127.0.0.1:1'"),
    ],
)
def test_a_bad_value_is_named_with_its_field(tmp_path: Path, text: str, field: str, value: str) -> None:
    error = refused(written(tmp_path, text))
    assert (error.field, error.value) == (field, value)
    assert error.reason


def test_text_that_is_no_toml_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    assert "TOML" in refused(written(tmp_path, "= 3")).reason
    assert "No such file" in refused(tmp_path / "nowhere.toml").reason


def test_an_unknown_variable_of_our_prefix_is_an_error_but_not_those_of_the_clients() -> None:
    assert refused(None, {"INFLIGHTD_MAX_BATCH": "1"}).field == "INFLIGHTD_MAX_BATCH"
    load_config(None, {"INFLIGHTD_TARGET": "x", "INFLIGHTD_ADMIN": "y"}, SCRIPTED)


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"kv_blocks": "4", "kv_memory": "1GiB"}, "kv_memory"),
        ({"max_batch_size": "64", "max_num_tokens": "63"}, "max_num_tokens"),
        ({"default_max_tokens": "100", "max_sequence_tokens": "100"}, "default_max_tokens"),
        ({"engine": "openvino"}, "model"),
        ({"scripted.script": "tokens"}, "scripted.token_ids"),
        ({"scripted.script": "tokens", "scripted.token_ids": ["512"]}, "scripted.token_ids"),
        ({"listen": ["0.0.0.0:9090"]}, "listen"),
        ({"listen": ["[::]:9090"]}, "listen"),
        ({"metrics_listen": "0.0.0.0:9091"}, "metrics_listen"),
        ({"metrics_listen": "127.0.0.1:9090"}, "metrics_listen"),
        ({"admin_socket": "/" + "x" * 200}, "admin_socket"),
        ({"scheduler_options": ["novalue"]}, "scheduler_options"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(flags: dict[str, Any], field: str) -> None:
    assert refused(**flags).field == field


def test_other_machines_may_be_let_in_on_purpose() -> None:
    config = load_config(None, {}, {**SCRIPTED, "listen": ["[::]:0", "unix:/tmp/x.sock"], "insecure": True})
    assert config.listen == ["[::]:0", "unix:/tmp/x.sock"]


def test_options_of_a_policy_do_not_survive_the_choice_of_another(tmp_path: Path) -> None:
    toml = written(tmp_path, "scheduler = 'a'\n[scheduler_options]\nx = 1\ny = 2")
    more = load_config(toml, {}, {**SCRIPTED, "scheduler_options": ["y=3"]})
    assert more.scheduler_options == {"x": 1, "y": "3"}
    other = load_config(toml, {}, {**SCRIPTED, "scheduler": "b"})
    assert other.scheduler_options == {}


def test_every_option_has_help_and_is_shown_with_its_default() -> None:
    @click.command()
    @config_options
    def command(**parameters: object) -> None:
        click.echo(repr(flags_given(parameters)))

    runner = CliRunner()
    shown = " ".join(runner.invoke(command, ["--help"]).output.split())
    for field in config_fields():
        assert field.help, field.name
        if field.flag:
            assert field.flag in shown
            assert field.variable.replace("_", "") in shown.replace(" ", "").replace("_", "")
    for flag in ("--max-batch-size", "--kv-memory", "--admin-socket", "--scripted-step-ms", "--set", "--insecure"):
        assert flag in shown
    given = runner.invoke(command, ["--listen", "a:1", "--listen", "b:2", "--set", "k=v", "--no-insecure"]).output
    assert ast.literal_eval(given) == {"scheduler_options": ("k=v",), "listen": ("a:1", "b:2"), "insecure": False}
