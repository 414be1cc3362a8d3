"""Headless Chromium for tests, driven over a pipe by its DevTools protocol; every wait has a deadline.

Source: https://chromedevtools.github.io/devtools-protocol, `--remote-debugging-pipe`: messages of JSON that end
with a zero byte, ours into descriptor 3, its own out of descriptor 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0


def find() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-headless-shell")


class PageError(AssertionError):
    """What the page threw, or what its policy on content kept from being loaded."""


class Chromium:
    """One browser with one page. A context manager."""

    def __init__(self, program: str, width: int = 1440, height: int = 1000) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvd-chromium-", ignore_cleanup_errors=True)
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        self._rest = b""
        self._last = 0
        self._session = ""
        self.complaints: list[str] = []  # errors that the page wrote or threw, in order
        self._process = self._start(program, reads, writes)
        os.close(reads)
        os.close(writes)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        self.resize(width, height)

    def _start(self, program: str, reads: int, writes: int) -> subprocess.Popen[bytes]:
        def place() -> None:  # in the child: dup2 lets a descriptor through exec
            low_reads, low_writes = os.dup(reads), os.dup(writes)
            os.dup2(low_reads, 3)
            os.dup2(low_writes, 4)

        return subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-extensions", "--disable-background-networking",
             "--hide-scrollbars", f"--user-data-dir={self._folder.name}", "--remote-debugging-pipe"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
            preexec_fn=place)  # fmt: skip

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._from, 1 << 20) if ready else b""
            if not piece:
                raise TimeoutError("Chromium does not answer")
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, told = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"])[:600])
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.complaints.append(told["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and told["type"] == "error":
            self.complaints.append(json.dumps(told["args"])[:600])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def resize(self, width: int, height: int) -> None:
        self._call("Emulation.setDeviceMetricsOverride",
                   width=width, height=height, deviceScaleFactor=1, mobile=False)  # fmt: skip

    def prefer(self, scheme: str) -> None:
        """`scheme`: "light" or "dark", as the system's setting."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)

    def run(self, expression: str) -> Any:
        """The value of JavaScript in the page; a promise is waited for."""
        done = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise PageError(json.dumps(done["exceptionDetails"])[:600])
        return done["result"].get("value")

    def text(self, selector: str) -> str:
        """What a person reads there; "" where it is not."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def comes_true(self, expression: str, patience: float = PATIENCE_S) -> bool:
        """Asks repeatedly. It is no error if the page does not exist yet, or lacks the element."""

        def holds() -> bool:
            try:
                return bool(self.run(f"Promise.resolve({expression}).then(Boolean)"))
            except (RuntimeError, PageError):
                return False

        deadline = time.monotonic() + patience
        while not holds():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def press(self, key: str) -> None:
        """A key of the keyboard by its name: "Tab", "ArrowRight", "Enter" …"""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        common: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        if key == "Enter":
            common["text"] = "\r"
        self._call("Input.dispatchKeyEvent", type="keyDown", **common)
        self._call("Input.dispatchKeyEvent", type="keyUp", **common)

    def write(self, text: str) -> None:
        self._call("Input.insertText", text=text)

    def save_picture(self, file: Path, whole: bool = True) -> None:
        """A PNG of the whole page, or of what the window shows."""
        shot: dict[str, Any] = {"format": "png"}
        if whole:
            size = self._call("Page.getLayoutMetrics")["cssContentSize"]
            shot |= {"captureBeyondViewport": True,
                     "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}  # fmt: skip
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", **shot)["data"]))

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()
