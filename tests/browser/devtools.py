"""Drive a Chromium over its DevTools pipe: a protocol of JSON messages, with no library needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
)

# The browser reads commands from descriptor 3 and writes answers to 4. Moved there by a program of
# its own: done in a forked copy of this one it could meet locks of JAX's threads.
_EXECUTE = """
import os, sys
reading, writing = os.dup(int(sys.argv[1])), os.dup(int(sys.argv[2]))
os.dup2(reading, 13), os.dup2(writing, 14)
os.dup2(13, 3), os.dup2(14, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    """The browser to test with: `$BROWSER_BINARY`, or the first Chromium on the path."""
    named = os.environ.get("BROWSER_BINARY", "")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab of a browser of its own, closed with the context."""

    def __init__(self, binary: str, profile: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self._number = 0
        self._buffer = b""
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        command = [binary, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        ends = (to_browser, from_browser)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _EXECUTE, *map(str, ends), *command],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._session: str | None = None
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        attached = self.command("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.command(f"{domain}.enable")

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)
        os.close(self._write)
        os.close(self._read)

    def command(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self, timeout_s: float = 60.0) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], deadline - time.monotonic())
            data = os.read(self._read, 1 << 20) if ready else b""
            assert data, "the browser does not answer"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def show(self, file: Path, *, width: int, height: int, dark: bool) -> None:
        """Open a file in a window of a size, in a colour scheme."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.command("Page.navigate", url=file.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        done = self.command("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def requests(self) -> list[str]:
        """The addresses asked for since the file was opened."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Errors and warnings of the page since the file was opened."""
        found = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(event["params"]["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded":
                entry = event["params"]["entry"]
                found.append(f"{entry['level']}: {entry['text']}")
        return found

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """Save what is seen as PNG, the whole page or the window."""
        shot = self.command(
            "Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole)
        )
        file.write_bytes(base64.b64decode(shot["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.command("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        return {"clip": clip}
