"""A headless Chromium driven over a pipe (DevTools protocol, `--remote-debugging-pipe`): no driver, no port, no package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Tab": 9}
SECONDS = 30
_COMMANDS, _ANSWERS = 3, 4  # file descriptors that Chromium reads from and writes to


def find_browser() -> str | None:
    """A Chromium on PATH, else one that playwright downloaded."""
    cached = sorted(Path.home().glob(".cache/ms-playwright/chromium*/*/*chrome*"))
    found = [shutil.which(name) for name in NAMES] + [str(file) for file in cached if os.access(file, os.X_OK)]
    return next((path for path in found if path), None)


class Browser:
    """One page of one browser; `messages` collects what the page's console and security policy reported."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        script = f'exec "$@" {_COMMANDS}<&{commands} {_ANSWERS}>&{answers}'
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--host-resolver-rules=MAP * ~NOTFOUND"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", program, *options],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer, self._count, self._session = b"", 0, None
        self._loaded = False
        self.messages: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict:
        """Sends a command and waits for its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, url: str) -> None:
        """Loads a page afresh and waits until it is there."""
        for address in ("about:blank", url):  # from one fragment of a page to another nothing would be loaded
            self._loaded = False
            self.call("Page.navigate", url=address)
            while not self._loaded:
                self._read()

    def run(self, expression: str) -> object:
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, *keys: str) -> None:
        """Real key presses, which go to the focused element."""
        for key in keys:
            event = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
            self.call("Input.dispatchKeyEvent", type="rawKeyDown", **event)
            self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, whole: bool = False) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def close(self) -> None:
        os.close(self._to)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)

    def _read(self) -> dict:
        """The next message; what the page reports on the way is kept."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], SECONDS)
            assert ready, f"Chromium did not answer within {SECONDS} s"
            part = os.read(self._from, 1 << 20)
            assert part, "Chromium ended"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        kind, told = message.get("method"), message.get("params", {})
        self._loaded = self._loaded or kind == "Page.loadEventFired"
        if kind in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.messages.append(json.dumps(told))
        if kind == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        return message


def addresses(requests: Sequence[str]) -> set[str]:
    """Schemes of what a page asked for."""
    return {url.split(":", 1)[0] for url in requests}
