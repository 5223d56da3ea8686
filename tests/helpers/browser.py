"""A headless browser for tests of pages: Chromium, by its DevTools protocol.

`Browser` starts and ends it. It never uses a network: pages are files.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from base64 import b64decode
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from websockets.sync.client import connect

DEADLINE = 60.0  # seconds, for everything that a machine under load may be slow at
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def installed() -> str | None:
    """Return the browser's program, None without one."""
    return next((program for name in _NAMES if (program := shutil.which(name))), None)


class Browser:
    """A page. `told`: messages of its console, its network and its errors."""

    def __init__(self, program: str) -> None:
        self._home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [
                *(program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage"),
                *("--remote-debugging-port=0", f"--user-data-dir={self._home.name}", "about:blank"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._number, self._ends = 0, ExitStack()
        self.told: list[dict[str, Any]] = []
        try:
            opened = connect(self._address(), max_size=None, proxy=None)
            self._socket = self._ends.enter_context(opened)
            targets = self._call("Target.getTargets")["targetInfos"]
            page = next(target["targetId"] for target in targets if target["type"] == "page")
            attached = self._call("Target.attachToTarget", targetId=page, flatten=True)
            self._session: str | None = attached["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self._call(f"{domain}.enable")
            self._call("Emulation.setFocusEmulationEnabled", enabled=True)
        except BaseException:
            self.close()
            raise

    _session: str | None = None

    def _address(self) -> str:
        file, end = Path(self._home.name) / "DevToolsActivePort", time.monotonic() + DEADLINE
        while time.monotonic() < end:
            if file.exists() and len(lines := file.read_text().splitlines()) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            assert self._process.poll() is None, "the browser ended"
            time.sleep(0.05)
        raise TimeoutError("the browser printed no port")

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        order: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            order["sessionId"] = self._session
        self._socket.send(json.dumps(order))
        while True:
            answer = json.loads(self._socket.recv(timeout=DEADLINE))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            if "method" in answer:
                self.told.append(answer)

    def look(
        self, width: int = 1000, height: int = 900, *, dark: bool = False, media: str = "screen"
    ) -> None:
        """Set the window's size, colours, or paper."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def open(self, file: Path) -> None:
        """Load a file, and wait until it is complete."""
        self._call("Page.navigate", url=file.resolve().as_uri())
        end = time.monotonic() + DEADLINE
        while self.run("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() < end, f"{file} does not load"
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page, or of its promise."""
        answer = self._call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key: Tab, Enter, a space, ArrowRight."""
        codes = {"Tab": 9, "Enter": 13, " ": 32, "ArrowRight": 39}
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self._call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key],
                **({"text": text} if text and kind == "keyDown" else {}),
            )  # fmt: skip

    def picture(self, file: Path, *, whole: bool = True) -> None:
        """Write the whole page, or the window, as a PNG."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(b64decode(answer["data"]))

    def paper(self, file: Path) -> None:
        """Return the whole page as a printed PDF."""
        answer = self._call("Page.printToPDF", printBackground=True)
        file.write_bytes(b64decode(answer["data"]))

    def close(self) -> None:
        """End the browser."""
        self._ends.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._home.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _: type[BaseException] | None,
        __: BaseException | None,
        ___: TracebackType | None,
    ) -> None:
        self.close()
