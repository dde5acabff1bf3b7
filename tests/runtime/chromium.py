"""A real Chromium without a window, driven over its debugging pipe; standard library only.

Source: https://chromedevtools.github.io/devtools-protocol/ (messages end with a zero byte, the
browser reads from file descriptor 3 and writes to 4).
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
#: A page that does not answer within this is broken, however busy the machine is.
PATIENCE_SECONDS = 60.0
_FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu",
    "--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--force-device-scale-factor=1",
)  # fmt: skip


def find() -> str | None:
    """Return the browser's path, None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


needed = pytest.mark.skipif(find() is None, reason="Chromium is not installed")


class Chromium:
    """One browser with one tab; a context manager that ends its process."""

    def __init__(self, *, width: int = 1280, height: int = 800) -> None:
        binary = find()
        assert binary is not None, "Chromium is not installed"
        self.folder = tempfile.mkdtemp(prefix="chromium-")
        flags = [*_FLAGS, f"--user-data-dir={self.folder}", f"--window-size={width},{height}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # it refuses to run as root with one
        self.pid, self.to_browser, self.from_browser = _start([binary, *flags, "about:blank"])
        self.buffer = b""
        self.count = 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        """What the tab reported: requests, errors, console messages."""
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self.to_browser)
        os.close(self.from_browser)
        os.kill(self.pid, signal.SIGTERM)
        until = time.monotonic() + PATIENCE_SECONDS
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.02)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send one command and return its result."""
        self.count += 1
        message: dict[str, object] = {"id": self.count, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            answer = self._receive(until)
            if answer.get("id") == self.count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.from_browser], [], [], until - time.monotonic())
            assert ready, "Chromium does not answer"
            more = os.read(self.from_browser, 1 << 20)
            assert more, "Chromium has ended"
            self.buffer += more
        text, _, self.buffer = self.buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(text)
        if "id" not in answer:
            self.events.append(answer)
        return answer

    def open(self, page: Path) -> None:
        """Load a file and wait until its scripts have run."""
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def value(self, expression: str) -> Any:
        """Return what a JavaScript expression (or a promise of it) gives."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression holds."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.value(f"Boolean({expression})"):
            assert time.monotonic() < until, f"never: {expression}"
            time.sleep(0.02)

    def place(self, selector: str) -> tuple[float, float]:
        """Scroll an element into view and return the middle of it."""
        box = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return box[0], box[1]

    def mouse(self, kind: str, x: float, y: float, **more: object) -> None:
        """Send one mouse event (`mouseMoved`, `mousePressed`, `mouseReleased`, `mouseWheel`)."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector: str) -> None:
        """Click on the middle of an element."""
        x, y = self.place(selector)
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)

    def key(self, key: str, text: str = "") -> None:
        """Press a key on what has the focus."""
        more = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def type(self, text: str) -> None:
        """Write into what has the focus."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Save what is in view, or the whole page, as PNG."""
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))

    def colours(self, points: Sequence[tuple[float, float]]) -> list[tuple[int, int, int]]:
        """Take a screenshot and return the colours of some of its pixels."""
        taken = self.call("Page.captureScreenshot", format="png")["data"]
        found = self.value(
            "(async () => { const image = new Image();"
            f"image.src = 'data:image/png;base64,{taken}'; await image.decode();"
            "const canvas = new OffscreenCanvas(image.width, image.height).getContext('2d');"
            f"canvas.drawImage(image, 0, 0); return {json.dumps(list(points))}.map(([x, y]) =>"
            "[...canvas.getImageData(x, y, 1, 1).data].slice(0, 3)); })()"
        )
        return [(red, green, blue) for red, green, blue in found]

    def problems(self) -> list[str]:
        """Return uncaught errors and whatever the console complained about."""
        found = []
        for event in self.events:
            what = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(what["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and what["entry"]["level"] == "error":
                found.append(what["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Return the addresses that were asked for, without what the page itself holds."""
        return [
            url
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
            and not (url := event["params"]["request"]["url"]).startswith(("data:", "blob:"))
        ]


def _start(command: list[str]) -> tuple[int, int, int]:
    """Start the browser with its pipes as 3 and 4; return its process and our ends."""
    # Numbers above 9, so that neither end is in the way of 3 and 4.
    browser_reads, we_write = (_high(end) for end in os.pipe())
    we_read, browser_writes = (_high(end) for end in os.pipe())
    quiet = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, quiet, number) for number in (0, 1, 2)]
    actions += [
        (os.POSIX_SPAWN_DUP2, browser_reads, 3),
        (os.POSIX_SPAWN_DUP2, browser_writes, 4),
    ]
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
    for done in (browser_reads, browser_writes, quiet):
        os.close(done)
    return pid, we_write, we_read


def _high(end: int) -> int:
    moved = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(end)
    return moved
