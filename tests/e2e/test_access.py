"""TLS, client certificates and tokens, on a daemon of its own process, by the clients and the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest

from inflightd.clients.access import Access
from inflightd.clients.admin import AsyncAdmin
from inflightd.clients.client import AsyncClient
from inflightd.clients.errors import AccessDeniedError, AccessError, UnavailableError
from inflightd.clients.prompts import GenerateOptions, TokenPrompt
from tests.support.certificates import Authority, written
from tests.support.daemons import INFLIGHTD, Daemon, running_daemon

TOKENS = {
    name: f"{name}-0123456789-0123456789-0123456789" for name in ("acme", "globex", "gateway", "ops", "batch", "late")
}
ENTRIES = {
    "acme": 'scopes = ["infer"]',
    "globex": 'scopes = ["infer"]',
    "gateway": 'scopes = ["gateway"]',
    "ops": 'scopes = ["control"]',
    "batch": 'scopes = ["infer"]\nclasses = ["batch"]',
    "late": 'scopes = ["infer"]',
}
CONFIG = """
engine = "scripted"
kv_blocks = 512
control_listen = "127.0.0.1:0"
[classes.default]
[classes.batch]
[scripted]
step_ms = 2.0
"""
SHORT = GenerateOptions(max_tokens=2)


def tokens_text(*names: str) -> bytes:
    return "".join(f'[{name}]\ntoken = "{TOKENS[name]}"\n{ENTRIES[name]}\n' for name in names).encode()


class Scene:
    """A daemon with TLS, client certificates and tokens, and all that its clients need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        self.authority = Authority(folder)
        self.server = self.authority.issue("server")
        self.client = self.authority.issue("client")
        self.config = written(folder / "inflightd.toml", CONFIG.encode())
        self.tokens = written(folder / "tokens.toml", tokens_text("acme", "globex", "gateway", "ops", "batch"))
        self.daemon: Daemon

    def options(self) -> list[str]:
        cert, key = self.server
        return ["--config", self.config, "--tls-cert", cert, "--tls-key", key]

    def access(self, name: str = "", ca: str | None = None, *, certificate: bool = True) -> Access:
        cert, key = self.client if certificate else ("", "")
        return Access(ca or self.authority.ca, cert, key, TOKENS.get(name, name))

    def as_client(self, name: str) -> AsyncClient:
        return AsyncClient(self.daemon.target, self.access(name))

    @property
    def control(self) -> str:
        return str(self.daemon.logged("listening")[0]["control"])

    def hang_up(self) -> dict[str, object]:
        """SIGHUP; the line that says what came of it."""
        events = ("config_read_again", "config_refused")
        before = sum(len(self.daemon.logged(event)) for event in events)
        self.daemon.process.send_signal(signal.SIGHUP)
        self.daemon.wait_until(lambda: sum(len(self.daemon.logged(event)) for event in events) > before)
        return [line for line in self.daemon.log if line.get("event") in events][-1]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("access"))
    more = ["--tls-client-ca", scene.authority.ca, "--tokens-file", scene.tokens]
    with running_daemon(*scene.options(), *more) as scene.daemon:
        yield scene
        assert not [line for line in scene.daemon.log if "exception" in line or "raw" in line], "not of our format"
        told = json.dumps(scene.daemon.log)
        assert not [name for name, token in TOKENS.items() if token in told]


async def cached(client: AsyncClient, prompt: list[int], tenant: str = "") -> int:
    """Tokens of the prompt that were found in the prefix cache."""
    answer = await client.generate_once(TokenPrompt(prompt), GenerateOptions(max_tokens=2, tenant=tenant))
    assert answer.usage is not None
    return answer.usage.cached_tokens


async def test_a_known_token_over_mutual_tls_is_served(scene: Scene) -> None:
    async with scene.as_client("acme") as client:
        answer = await client.generate_once(TokenPrompt([5, 6]), SHORT)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2
        assert [len(each.token_ids) async for each in client.generate(TokenPrompt([5]), SHORT)]
        assert await client.health() == "SERVING"
        assert (await client.list_models())[0].engine == "scripted"
        assert await client.detokenize(await client.tokenize("abc")) == "abc"


@pytest.mark.parametrize("name", ["", "nobody-0123456789-0123456789-0123456789", "late"])
async def test_no_token_or_an_unknown_one_is_told_so_and_not_quoted(scene: Scene, name: str) -> None:
    async with scene.as_client(name) as client:
        calls = (
            client.generate_once(TokenPrompt([5]), SHORT),
            anext(client.generate(TokenPrompt([5]), SHORT)),
            client.list_models(),
            client.tokenize("x"),
            client.detokenize([3]),
        )
        for call in calls:
            with pytest.raises(AccessDeniedError) as refused:
                await call
            assert refused.value.code == "UNAUTHENTICATED"
            assert "token" in refused.value.message
            assert "0123456789" not in refused.value.message
        assert await client.health() == "SERVING", "those who probe have no token"


async def test_a_scope_is_for_its_own_service(scene: Scene) -> None:
    async with scene.as_client("ops") as client:
        with pytest.raises(AccessDeniedError, match="the token ops has not the scope gateway or infer") as refused:
            await client.list_models()
        assert refused.value.code == "PERMISSION_DENIED"
    async with AsyncAdmin(scene.control, scene.access("ops")) as admin:
        assert (await admin.status()).ready
        assert (await admin.swap("static-batch")).name == "static-batch"
        assert (await anext(admin.watch())).state == "ready"
        assert (await admin.swap("throughput-max")).name == "throughput-max"
    for name in ("", "acme", "gateway"):
        async with AsyncAdmin(scene.control, scene.access(name)) as admin:
            for call in (admin.status(), admin.drain(), admin.swap("static-batch"), anext(admin.watch())):
                with pytest.raises(AccessDeniedError):
                    await call
    async with AsyncAdmin(scene.daemon.target, scene.access("ops")) as admin:
        with pytest.raises(Exception, match="UNIMPLEMENTED"):  # never on the public address
            await admin.status()
    async with AsyncAdmin(scene.daemon.admin, Access()) as admin:
        assert (await admin.status()).ready, "on the socket its mode decides"


async def test_tenants_are_the_tokens_and_find_their_own_prefixes_only(scene: Scene) -> None:
    """Case K03: hit within a tenant, none across; a message cannot forge one."""
    prompt = [token % 250 + 5 for token in range(200)]
    async with scene.as_client("acme") as acme, scene.as_client("globex") as globex:
        assert [await cached(acme, prompt), await cached(acme, prompt)] == [0, 192]
        assert [await cached(globex, prompt), await cached(globex, prompt)] == [0, 192]
        assert await cached(acme, prompt, tenant="acme") == 192
        with pytest.raises(AccessDeniedError, match="of another tenant"):
            await cached(globex, prompt, tenant="acme")
    async with scene.as_client("gateway") as gateway:
        assert await cached(gateway, prompt) == 0
        assert await cached(gateway, prompt, tenant="acme") == 192
        assert await cached(gateway, prompt, tenant="initech") == 0


async def test_classes_are_the_tokens(scene: Scene) -> None:
    async with scene.as_client("batch") as client:
        await client.generate_once(TokenPrompt([5]), GenerateOptions(max_tokens=1, service_class="batch"))
        with pytest.raises(AccessDeniedError, match="the token batch is for batch only"):
            await client.generate_once(TokenPrompt([5]), SHORT)


async def test_without_a_certificate_of_the_authority_nobody_gets_in(scene: Scene, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    cert, key = stranger.issue("client")
    ca, token = scene.authority.ca, TOKENS["acme"]
    for access in (Access(ca, token=token), Access(ca, cert, key, token), Access(stranger.ca, *scene.client, token)):
        async with AsyncClient(scene.daemon.target, access) as client:
            with pytest.raises(UnavailableError):
                await client.health(timeout_s=5)
    async with AsyncClient(scene.daemon.target, Access()) as client:
        with pytest.raises(UnavailableError):
            await client.health(timeout_s=5)
    assert scene.daemon.status()["ready"]


async def test_a_token_is_not_sent_to_another_machine_in_plaintext() -> None:
    with pytest.raises(AccessError, match="unencrypted"):
        AsyncClient("192.0.2.1:9090", Access(token=TOKENS["acme"]))
    async with AsyncClient("127.0.0.1:9", Access(token=TOKENS["acme"])):
        pass


def certificate(scene: Scene) -> bytes:
    """What the daemon shows in a handshake now."""
    context = ssl.create_default_context(cafile=scene.authority.ca)
    context.load_cert_chain(*scene.client)
    host, _, port = scene.daemon.target.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 5) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    assert shown
    return shown


async def test_files_are_read_again_and_connections_live_on(scene: Scene) -> None:
    async with scene.as_client("acme") as client, scene.as_client("late") as late:
        stream = client.generate(TokenPrompt([5]), GenerateOptions(max_tokens=1000))
        await anext(stream)
        with pytest.raises(AccessDeniedError):
            await late.list_models()
        before = certificate(scene)
        scene.authority.issue("server")
        assert certificate(scene) == before, "nobody has asked yet"
        written(Path(scene.tokens), tokens_text("late", "ops"))
        assert scene.hang_up()["event"] == "config_read_again"
        renewed = certificate(scene)
        assert renewed != before
        assert await late.list_models(), "on the connection there was"
        with pytest.raises(AccessDeniedError):
            await client.list_models()
        assert len([delta async for delta in stream]) > 100, "what began goes on"

        for path, text in ((scene.tokens, b"[acme"), (scene.server[0], b"junk")):
            good = Path(path).read_bytes()
            written(Path(path), text)
            refused = scene.hang_up()
            assert refused["event"] == "config_refused"
            assert refused["field"] in ("tokens_file", "tls_cert")
            assert await late.list_models()
            assert certificate(scene) == renewed
            written(Path(path), good)
        Path(scene.tokens).chmod(0o644)
        assert "open to other users" in str(scene.hang_up()["reason"])
        written(Path(scene.tokens), tokens_text("acme", "globex", "gateway", "ops", "batch"))
        assert scene.hang_up()["event"] == "config_read_again"
        assert await client.list_models()


def command(scene: Scene, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("INFLIGHTD_")}
    return subprocess.run(
        [INFLIGHTD, *arguments], env={**clean, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_command_line_takes_them_from_options_and_the_environment(scene: Scene) -> None:
    cert, key = scene.client
    token_file = written(scene.folder / "token", TOKENS["acme"].encode() + b"\n")
    options = ("--tls-ca", scene.authority.ca, "--tls-cert", cert, "--tls-key", key)
    environment = {
        "INFLIGHTD_CLIENT_TLS_CA": scene.authority.ca,
        "INFLIGHTD_CLIENT_TLS_CERT": cert,
        "INFLIGHTD_CLIENT_TLS_KEY": key,
    }
    ask = ("generate", "--raw", "--max-tokens", "2", "hi", "--target", scene.daemon.target)
    assert command(scene, *ask, *options, "--token-file", token_file).returncode == 0
    assert command(scene, *ask, **environment, INFLIGHTD_CLIENT_TOKEN_FILE=token_file).returncode == 0
    assert command(scene, *ask, **environment, INFLIGHTD_CLIENT_TOKEN=TOKENS["acme"]).returncode == 0
    # What an option says wins over the environment.
    assert command(scene, *ask, "--token-file", token_file, **environment, INFLIGHTD_CLIENT_TOKEN="x").returncode == 0
    refused = command(scene, *ask, **environment)
    assert refused.returncode == 1
    assert "UNAUTHENTICATED" in refused.stderr
    status = command(scene, "status", "--admin", scene.control, **environment, INFLIGHTD_CLIENT_TOKEN=TOKENS["ops"])
    assert "throughput-max" in status.stdout, status.stderr
    public = command(scene, "status", "--target", scene.daemon.target, *options, "--token-file", token_file)
    assert "SERVING" in public.stdout, public.stderr
    for wrong in (("--token-file", f"{scene.folder}/none"), ("--tls-cert", cert)):
        for name in (ask, ("chat", "--target", scene.daemon.target), ("doctor", "--admin", scene.control)):
            done = command(scene, *name, *wrong)
            assert done.returncode == 2, done.stderr
            assert "Traceback" not in done.stderr


def test_the_daemon_makes_its_own_sockets_for_owner_and_group(scene: Scene) -> None:
    assert stat.S_IMODE(os.stat(scene.daemon.admin).st_mode) == 0o660


async def test_reflection_wants_a_token_too(scene: Scene) -> None:
    files = (scene.authority.ca, *reversed(scene.client))
    credentials = grpc.ssl_channel_credentials(*(Path(path).read_bytes() for path in files))
    async with grpc.aio.secure_channel(scene.daemon.target, credentials) as channel:
        call = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(iter([b""])).read()
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def serve(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [INFLIGHTD, "serve", "--engine", "scripted", *options], capture_output=True, text=True, timeout=30, check=False
    )


def test_what_would_leave_a_door_open_is_refused_at_the_start(scene: Scene, tmp_path: Path) -> None:
    cert, key = scene.server
    open_tokens = written(tmp_path / "tokens", tokens_text("acme"), 0o644)
    tmp_path.chmod(0o755)
    tls, tokens = ("--tls-cert", cert, "--tls-key", key), ("--tokens-file", scene.tokens)
    everywhere = ("--listen", "0.0.0.0:0")
    cases: list[tuple[tuple[str, ...], str]] = [
        (everywhere, "set tls_cert and tokens_file, or say --insecure"),
        ((*everywhere, *tls), "set tokens_file, or say --insecure"),
        ((*everywhere, *tokens), "set tls_cert, or say --insecure"),
        (("--control-listen", "127.0.0.1:0"), "needs tokens_file"),
        (("--control-listen", "127.0.0.1:0", "--insecure"), "needs tokens_file"),
        (("--control-listen", "0.0.0.0:0", *tokens), "set tls_cert"),
        (("--control-listen", "unix:/tmp/x", *tokens), "expected HOST:PORT"),
        (("--metrics-listen", "0.0.0.0:0", *tls, *tokens), "say --insecure"),
        (("--tls-cert", cert), "tls_cert is set: the two belong together"),
        (("--tls-client-ca", scene.authority.ca), "needs tls_cert and tls_key"),
        (("--tokens-file", open_tokens), "open to other users"),
        (("--tokens-file", ""), "expected a path"),
    ]
    for options, reason in cases:
        done = serve(*options, "--admin-socket", f"{tmp_path}/a.sock")
        assert done.returncode == 78, (options, done.stderr)
        assert reason in done.stderr
        assert "0123456789" not in done.stdout + done.stderr


def test_with_tls_and_tokens_a_listener_may_be_open_to_all(scene: Scene, tmp_path: Path) -> None:
    tokens = written(tmp_path / "tokens", tokens_text("acme", "batch"))
    folder = tmp_path / "copies"
    shutil.copytree(scene.folder, folder)
    tls = ("--tls-cert", f"{folder}/server.cert.pem", "--tls-key", f"{folder}/server.key.pem")
    with running_daemon("--config", scene.config, "--listen", "0.0.0.0:0", *tls, "--tokens-file", tokens) as daemon:
        assert daemon.is_ready()


def test_a_secret_under_a_mistyped_variable_is_not_shown() -> None:
    done = subprocess.run(
        [INFLIGHTD, "serve", "--engine", "scripted"],
        env={**os.environ, "INFLIGHTD_TOKEN": "canary"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 78
    assert "INFLIGHTD_TOKEN" in done.stderr
    assert "canary" not in done.stderr
