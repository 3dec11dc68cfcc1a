"""The life of the daemon's front process: startup, run, shutdown, in this order."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from inflightd.daemon.config import Address, Config, parse_address
from inflightd.daemon.core.wire import FinishReason
from inflightd.daemon.errors import ConfigError
from inflightd.daemon.front.frontend import Frontend
from inflightd.daemon.front.text import TextService
from inflightd.daemon.logs import LogFormat, get_logger
from inflightd.daemon.metrics import Metrics, MetricsServer
from inflightd.daemon.reload import Reloads
from inflightd.daemon.rpc.access import Access
from inflightd.daemon.rpc.control import ControlService
from inflightd.daemon.rpc.health import HealthService
from inflightd.daemon.rpc.listeners import ListenError, UnixLock, check_tcp
from inflightd.daemon.rpc.server import CONTROL, INFERENCE, admin_server, listen, public_server
from inflightd.profiling.open_ranges import open_ranges
from inflightd.profiling.ranges import Ranges

_log = get_logger(__name__)

SWEEP_S = 1.0
# Between "not serving" and the end of listening: a call that is on its way then gets a proper UNAVAILABLE from its
# handler, while gRPC would cancel it.
NOTICE_S = 0.2
# After the grace: for the last messages and statuses to leave.
END_LIMIT_S = 1.0
TEXT_THREADS = 2

EXIT_OK, EXIT_RESTART, EXIT_CONFIG = 0, 75, 78


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model as the front knows it before its engine runs."""

    text: TextService
    model: str  # for the engine process
    model_name: str


def load_text(config: Config, executor: ThreadPoolExecutor) -> Loaded:
    """Tokenizer and chat template.  Raises `ConfigError`."""
    if config.engine == "scripted" and not config.model:
        from inflightd.daemon.front.tokenizer_bytes import byte_tokenizer

        scripted = config.scripted
        tokenizer = byte_tokenizer(scripted.vocab_size, scripted.eos_token_ids)
        return Loaded(TextService(tokenizer, None, executor), "", config.model_name or "scripted")
    from inflightd.daemon.front.tokenizer_files import load_tokenizer
    from inflightd.daemon.models.source import resolve_model

    source = resolve_model(config.model)
    tokenizer, template = load_tokenizer(source.path)
    text = TextService(tokenizer, template, executor)
    return Loaded(text, str(source.path), config.model_name or source.name)


def front_ranges(config: Config) -> Ranges | None:
    """Where this process's ranges go.  Raises `ConfigError`."""
    path = Path(config.ranges_path) if config.ranges_path else None
    try:
        return open_ranges(config.ranges, "front", path)
    except OSError as error:
        raise ConfigError("ranges_path", config.ranges_path, error.strerror or str(error)) from error


class App:
    """One daemon.  `startup()`, `run()`, `shutdown()`; or `serve()` for all three."""

    def __init__(
        self, config: Config, log_format: LogFormat = "json", reread: Callable[[], Config] | None = None
    ) -> None:
        """reread: the configuration from the same sources, as they are now; raises `ConfigError`."""
        self._config = config
        self._reloads = Reloads(config, reread) if reread is not None else None
        self._log_format: LogFormat = log_format
        self._locks: list[UnixLock] = []
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._grace_s = config.drain_grace_s
        self._metrics = Metrics()
        self._metrics_server: MetricsServer | None = None
        self._executor = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text")
        self._addresses: list[Address] = []
        self._health = HealthService((INFERENCE, CONTROL))
        self._ranges: Ranges | None = None

    async def serve(self, announce: Callable[[dict[str, Any]], None] | None = None) -> int:
        """The exit status.  announce: told the real addresses once the daemon listens.

        Raises `ConfigError`, `ListenError` or `EngineError`.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        try:
            await self._startup(announce)
            await self._run()
        finally:
            await self._shutdown()
        return EXIT_OK

    # --- startup: everything that can be refused is refused before the slow load

    async def _startup(self, announce: Callable[[dict[str, Any]], None] | None) -> None:
        config = self._config
        wanted = [parse_address(text) for text in config.listen]
        assert config.admin_socket is not None, "load_config sets it"
        admin_address = Address(path=config.admin_socket)
        for address in (*wanted, admin_address):
            if address.path:
                self._locks.append(UnixLock(address.path))
            else:
                check_tcp(address)
        for text in (config.control_listen, config.metrics_listen):
            if text is not None:
                check_tcp(parse_address(text))
        self._access = Access(config)

        loaded = load_text(config, self._executor)
        self._ranges = front_ranges(config)
        self._front = Frontend(
            config,
            loaded.text,
            model=loaded.model,
            model_name=loaded.model_name,
            metrics=self._metrics,
            log_format=self._log_format,
            on_state=self._on_state,
            ranges=self._ranges,
        )
        # The engine process loads while the servers start.
        self._engine = asyncio.create_task(self._front.run(), name="engine")
        self._control = ControlService(self._front, self._drain, self._listening)
        self._servers: list[grpc.aio.Server] = []
        access = self._access
        public = public_server(config, self._front, self._health, access.tokens)
        self._servers.append(public)
        self._addresses = [listen(public, address, access.tls) for address in wanted]
        admin = admin_server(config, self._control, self._health)
        self._servers.append(admin)
        listen(admin, admin_address)
        listening: dict[str, Any] = {"listen": self._listening(), "admin_socket": config.admin_socket}
        if config.control_listen is not None:
            control = admin_server(config, self._control, self._health, access.tokens)
            self._servers.append(control)
            listening["control"] = str(listen(control, parse_address(config.control_listen), access.tls))
        for server in self._servers:
            await server.start()
        if config.metrics_listen is not None:
            metrics_address = parse_address(config.metrics_listen)
            try:
                self._metrics_server = MetricsServer(self._metrics, metrics_address.host, metrics_address.port)
            except OSError as error:  # taken since it was checked
                raise ListenError(str(metrics_address), error.errno or 0) from error
            listening["metrics"] = str(Address(host=metrics_address.host, port=self._metrics_server.port))
        if config.nsys_session:
            _log.info("nsys_session", session=config.nsys_session, pid=os.getpid())
        _log.info("listening", max_message_bytes=config.max_message_bytes, **listening)
        if announce is not None:
            announce({**listening, "model": loaded.model_name})

    def _listening(self) -> list[str]:
        return [str(address) for address in self._addresses]

    def _on_state(self, state: str) -> None:
        self._health.set_serving(state == "ready")
        if state == "ready":
            gc.collect()
            gc.freeze()  # what was made until now lives as long as the daemon: never walk it again
            if self._reloads is not None:
                self._reloads.engine_ready()
        _log.info("state", state=state)

    # --- run: until a signal, a drain, or the end of the engine's supervision

    async def _run(self) -> None:
        sweeper = asyncio.create_task(self._sweep(), name="sweep")
        reloads = asyncio.create_task(self._reload(), name="reload")
        stop = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            await asyncio.wait((self._engine, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sweeper.cancel()
            reloads.cancel()
            stop.cancel()
        if self._engine.done():
            self._engine.result()  # raises what ended it

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._front.sweep()

    async def _reload(self) -> None:
        if self._reloads is not None:
            await self._reloads.serve(self._use_configured)

    async def _use_configured(self, config: Config) -> None:
        """What a reload takes over: the contents of certificate and token files, and the scheduler.  Raises as
        `Frontend.use_configured`."""
        await asyncio.to_thread(self._access.read_again)
        await self._front.use_configured(config)

    def _on_hangup(self) -> None:
        """Read the configuration again, and the certificates and tokens; the scheduler it names is swapped in."""
        _log.info("signal", signal="SIGHUP")
        if self._reloads is not None:
            self._reloads.ask()

    def _on_signal(self, number: int) -> None:
        """The first begins the drain, the second ends it."""
        _log.info("signal", signal=signal.Signals(number).name)
        if self._stop.is_set():
            self._hurry.set()
        self._drain(None)

    def _drain(self, grace_s: float | None) -> int:
        """A later call can only shorten the grace."""
        wanted_s = self._config.drain_grace_s if grace_s is None else grace_s
        if self._stop.is_set() and wanted_s < self._grace_s:
            self._hurry.set()
        elif not self._stop.is_set():
            self._grace_s = wanted_s
        self._stop.set()
        return self._front.begin_drain() if hasattr(self, "_front") else 0

    # --- shutdown: no new calls, the grace, the rest ended, the engine gone

    async def _shutdown(self) -> None:
        if hasattr(self, "_servers"):
            await self._end_servers()
        if hasattr(self, "_engine"):
            self._front.stop()
            await asyncio.gather(self._engine, return_exceptions=True)
        if self._metrics_server is not None:
            self._metrics_server.close()
        if self._ranges is not None:
            try:
                self._ranges.close()
            except OSError as error:
                _log.error("ranges_not_written", error=str(error))
        self._executor.shutdown(cancel_futures=True)
        for lock in self._locks:
            lock.release()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(number)
        _log.info("stopped")

    async def _end_servers(self) -> None:
        in_flight = self._front.begin_drain()
        self._health.close()
        self._control.close()
        grace_s = self._grace_s if not self._engine.done() else 0.0
        _log.info("draining", in_flight=in_flight, grace_s=grace_s)
        began_s = asyncio.get_running_loop().time()
        public, *others = self._servers
        await asyncio.sleep(min(NOTICE_S, grace_s))
        # Closes the listeners at once; connections live on until their streams are done.
        grace_s -= asyncio.get_running_loop().time() - began_s
        grace_s = max(0.0, grace_s)
        stopped = asyncio.create_task(public.stop(grace_s + END_LIMIT_S))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((stopped, hurry), timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not stopped.done():
            ended = self._front.requests.end_all(FinishReason.DRAINED)
            _log.info("drain_ended_streams", ended=ended)
            await asyncio.wait((stopped,), timeout=END_LIMIT_S)
            await public.stop(0)
        await stopped
        for server in others:
            await server.stop(END_LIMIT_S)


def run_app(
    config: Config,
    log_format: LogFormat,
    announce: Callable[[dict[str, Any]], None] | None,
    reread: Callable[[], Config],
) -> int:
    """Run a daemon on an event loop of its own (uvloop) and return its exit status.  Raises as `App.serve`."""
    import uvloop

    async def main() -> int:
        return await App(config, log_format, reread).serve(announce)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
