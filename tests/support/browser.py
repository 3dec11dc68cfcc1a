"""A headless Chromium, driven by its DevTools protocol over two pipes: no port, no driver, no package."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
_ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage")
_PATIENCE_S = 60.0


class Browser:
    """One tab.  `errors` holds what the page wrote to the console as an error, threw, or was forbidden to load."""

    def __init__(self, process: subprocess.Popen[bytes], to_fd: int, from_fd: int) -> None:
        self._process, self._to_fd, self._from_fd = process, to_fd, from_fd
        self._numbers = itertools.count(1)
        self._received = b""
        self._session = ""
        self.errors: list[str] = []
        self.requested: list[str] = []  # addresses
        target = self._command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._command(f"{domain}.enable")

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Until the page says that it has drawn itself."""
        self._command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._command("Emulation.setEmulatedMedia", features=[scheme])
        self._command("Page.navigate", url=page.resolve().as_uri())
        self.wait_for("document.body && document.body.dataset.ready === '1'")

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript, as JSON has it."""
        done = self._command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Until it is true."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"never true: {expression}; errors: {self.errors}"
            time.sleep(0.02)

    def settle(self) -> None:
        """Until what the page put off to its next frames is drawn."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def mouse(self, kind: str, x: float, y: float, **more: object) -> None:
        """kind: mousePressed, mouseReleased, mouseMoved or mouseWheel."""
        self._command("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        self.drag((x, y), (x, y))

    def drag(self, start: tuple[float, float], end: tuple[float, float], *, modifiers: int = 0) -> None:
        """With the left button; modifiers: 8 is shift."""
        pressed = {"button": "left", "buttons": 1, "clickCount": 1, "modifiers": modifiers}
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, **pressed)
        if end != start:
            self.mouse("mouseMoved", (start[0] + end[0]) / 2, end[1], **pressed)
            self.mouse("mouseMoved", *end, **pressed)
        self.mouse("mouseReleased", *end, **{**pressed, "buttons": 0})
        self.settle()

    def wheel(self, x: float, y: float, delta_y: float) -> None:
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=delta_y)
        self.settle()

    def key(self, key: str) -> None:
        """Press and release, as a person does."""
        text = {"text": key} if len(key) == 1 else {}
        self._command("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self._command("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def screenshot(self) -> str:
        """PNG, in base64."""
        data: str = self._command("Page.captureScreenshot", format="png")["data"]
        return data

    def _command(self, method: str, **parameters: object) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, object] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to_fd, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._from_fd], [], [], _PATIENCE_S)
            assert ready, "the browser does not answer"
            part = os.read(self._from_fd, 1 << 20)
            assert part, f"the browser is gone: exit status {self._process.poll()}"
            self._received += part
        text, _, self._received = self._received.partition(b"\0")
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.errors.append(str(parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.errors.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requested.append(parameters["request"]["url"])
            case _:
                pass


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """profile: a folder of its own."""
    assert CHROMIUM
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    # Chromium reads commands at descriptor 3 and answers at 4; the shell puts them there.
    shell = f'exec "$@" 3<&{to_read} 4>&{from_write}'
    arguments = (CHROMIUM, *_ARGUMENTS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank")
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", *arguments],
        pass_fds=(to_read, from_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Browser(process, to_write, from_read)
    finally:
        # Without its pipe it ends.
        os.close(to_write)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_read)
