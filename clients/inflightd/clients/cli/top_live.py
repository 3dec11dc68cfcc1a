"""The loop of the full screen: samples, keys, signals and answers come in at one place, one at a time."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from inflightd.clients.cli.session import ANSWER_S, SWAP_ANSWER_S
from inflightd.clients.cli.top_keys import (
    Action,
    AskPolicies,
    Quit,
    Screen,
    Swap,
    Watch,
    keys_in,
    offer,
    press,
    show,
    tell,
)
from inflightd.clients.cli.top_rates import first_picture
from inflightd.clients.cli.top_terminal import FullScreen, glyphs_here
from inflightd.clients.cli.top_view import view
from inflightd.clients.errors import DeadlineError, ServerError, UnavailableError
from inflightd.clients.status import SchedulerPolicy, StatsSample, SwapResult

if TYPE_CHECKING:
    from inflightd.clients.admin import AsyncAdmin

_ENDS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_LATE_S: Final = 3.0  # beyond its interval: then a missing sample is told


@dataclass(frozen=True, slots=True)
class _Key:
    key: str


@dataclass(frozen=True, slots=True)
class _Signal:
    number: int


@dataclass(frozen=True, slots=True)
class _Told:
    """The daemon's answer to an order."""

    message: str
    alarming: bool = False


_Event = _Key | _Signal | _Told | StatsSample | tuple[SchedulerPolicy, ...] | Exception


def daemon_ended() -> ServerError:
    return UnavailableError("UNAVAILABLE", "the daemon has ended")


def no_sample(seconds: float) -> ServerError:
    return DeadlineError("DEADLINE_EXCEEDED", f"no sample within {seconds:g} s")


class LiveTop:
    def __init__(self, admin: AsyncAdmin, interval_ms: int, terminal: FullScreen) -> None:
        self._admin = admin
        self._terminal = terminal
        self._glyphs = glyphs_here()
        self._screen = Screen(interval_ms)
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._last_s = asyncio.get_running_loop().time()  # when a sample came

    async def run(self) -> int:
        """Until the person or a signal ends it: the exit status.  Raises ServerError: the daemon has ended."""
        # Signals first: one that comes between two lines here must find the terminal as it was, or be told to us.
        async with self._signals():
            try:
                with self._terminal:
                    return await self._serve()
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self) -> int:
        loop, keyboard = asyncio.get_running_loop(), self._terminal.keyboard
        if keyboard is not None:
            loop.add_reader(keyboard, self._on_keys, keyboard)
        try:
            self._act(Watch(self._screen.interval_ms))
            while True:
                self._draw()
                event = await self._next_event()
                if isinstance(event, _Signal) and event.number in _ENDS:
                    return 128 + event.number
                if event is not None and self._take(event):
                    return 0
        finally:
            if keyboard is not None:
                loop.remove_reader(keyboard)

    async def _next_event(self) -> _Event | None:
        """None after a second without any."""
        try:
            async with asyncio.timeout(1.0):
                return await self._events.get()
        except TimeoutError:
            return None

    def _take(self, event: _Event) -> bool:
        """Whether that was all."""
        match event:
            case _Key(key):
                self._screen, action = press(self._screen, key)
                if isinstance(action, Quit):
                    return True
                if action is not None:
                    self._act(action)
            case _Signal(signal.SIGTSTP):
                self._terminal.suspend()
            case StatsSample():
                self._last_s = asyncio.get_running_loop().time()
                before = self._screen.latest
                self._screen = show(self._screen, before.then(event) if before else first_picture(event))
            case _Told(message, alarming):
                self._screen = tell(self._screen, message, alarming=alarming)
            case tuple():
                self._screen = offer(self._screen, event)
            case Exception():
                raise event
        return False

    def _draw(self) -> None:
        silent_s = asyncio.get_running_loop().time() - self._last_s
        if self._screen.picture is None and silent_s > self._screen.interval_ms / 1000 + ANSWER_S:
            raise no_sample(silent_s)
        late = silent_s > self._screen.interval_ms / 1000 + _LATE_S
        self._screen = replace(self._screen, silent_s=int(silent_s) if late else 0)
        width, height = self._terminal.size
        self._terminal.draw(view(self._screen, width, height, self._glyphs))

    # --- what is asked of the daemon; answers come as events

    def _act(self, action: Action) -> None:
        match action:
            case AskPolicies():
                self._begin(self._list())
            case Swap(name):
                self._begin(self._swap(name))
            case Watch(interval_ms):
                if self._watch is not None:
                    self._watch.cancel()
                self._watch = self._begin(self._samples(interval_ms))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._reported(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _reported(self, work: Coroutine[Any, Any, None]) -> None:
        """What goes wrong in a task ends the program as if it had gone wrong here."""
        try:
            await work
        except Exception as error:
            self._events.put_nowait(error)

    async def _samples(self, interval_ms: int) -> None:
        async with aclosing(self._admin.watch(interval_ms=interval_ms)) as samples:
            async for sample in samples:
                self._events.put_nowait(sample)
        raise daemon_ended()

    async def _list(self) -> None:
        try:
            self._events.put_nowait(tuple(await self._admin.list_schedulers(timeout_s=ANSWER_S)))
        except ServerError as error:
            self._events.put_nowait(_Told(f"no list of policies: {error}", alarming=True))

    async def _swap(self, name: str) -> None:
        try:
            done = await self._admin.swap(name, timeout_s=SWAP_ANSWER_S)
        except ServerError as error:
            self._events.put_nowait(_Told(f"{name} refused, nothing has changed: {error}", alarming=True))
        else:
            self._events.put_nowait(_Told(swap_text(done)))

    # --- callbacks of the event loop

    def _on_keys(self, keyboard: int) -> None:
        try:
            data = os.read(keyboard, 1024)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            asyncio.get_running_loop().remove_reader(keyboard)
            self._events.put_nowait(_Signal(signal.SIGHUP))
        for key in keys_in(data):
            self._events.put_nowait(_Key(key))

    @asynccontextmanager
    async def _signals(self) -> AsyncIterator[None]:
        """Ctrl-C is left to the event loop's runner: it cancels what runs, and every context ends in its order."""
        loop = asyncio.get_running_loop()
        numbers = (*_ENDS, signal.SIGTSTP, signal.SIGWINCH)
        for number in numbers:
            loop.add_signal_handler(number, self._events.put_nowait, _Signal(number))
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


def swap_text(done: SwapResult) -> str:
    waited_ms = (done.snapshot_ns + done.pause_ns) / 1e6
    return (
        f"{done.previous} -> {done.name}, generation {done.generation}, from step {done.step} on;"
        f" streams waited {waited_ms:.2f} ms for it"
    )
