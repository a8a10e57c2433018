"""A real browser for tests: Chromium, driven by its DevTools protocol over a pipe; and axe-core,
which finds what a page lacks for readers who can't see, or don't point."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

AXE = "axe-core@4.10.3"  # an npm package
WAIT_S = 60.0
STANDARD = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")


class Browser:
    """One process; skips the test where there is no Chromium."""

    def __init__(self, folder: Path) -> None:
        chromium = shutil.which("chromium")
        if chromium is None:
            pytest.skip("no chromium here: apt-get install chromium")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        words = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
        plumb = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", plumb, "bash", chromium, *words, f"--user-data-dir={folder}"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._left, self._numbers = b"", itertools.count(1)
        self.complaints: list[str] = []  # of consoles

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Do it, and wait for the answer."""
        number = next(self._numbers)
        asked = {"id": number, "method": method, "params": params}
        asked |= {"sessionId": session} if session else {}
        os.write(self._out, json.dumps(asked).encode() + b"\0")
        while (said := self._read()).get("id") != number:
            event, told = said.get("method"), said.get("params", {})
            if event == "Runtime.exceptionThrown" or (
                event == "Log.entryAdded" and told["entry"]["level"] == "error"
            ):
                self.complaints.append(json.dumps(told))
        assert "error" not in said, said
        return said["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            assert select.select([self._in], [], [], WAIT_S)[0], "the browser gives no answer"
            chunk = os.read(self._in, 1 << 20)
            assert chunk, "the browser has ended"
            self._left += chunk
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)

    def open(self, url: str, width: int, height: int = 900, dark: bool = False) -> BrowserPage:
        """A page of that size, loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        page = BrowserPage(self, target, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        page.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call("Page.navigate", url=url)
        page.until("location.href != 'about:blank' && document.readyState == 'complete'")
        return page


class BrowserPage:
    """A tab."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser, self._target, self._session = browser, target, session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def evaluate(self, script: str) -> Any:
        """The value of an expression, awaited."""
        asked = {"expression": script, "awaitPromise": True, "returnByValue": True}
        said = self.call("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def until(self, script: str) -> Any:
        """Wait for an expression to be true; its value."""
        deadline = time.monotonic() + WAIT_S
        while not (value := self.evaluate(script)):
            assert time.monotonic() < deadline, script
            time.sleep(0.05)
        return value

    def violations(self, axe: Path) -> list[str]:
        """What axe-core calls serious or critical: the rule, its help, the first places."""
        self.evaluate(axe.read_text() + "; 0")
        rules = json.dumps({"runOnly": STANDARD})
        found = self.evaluate(f"axe.run(document, {rules}).then((said) => said.violations)")
        return [
            f"{one['id']}: {one['help']}: {[node['html'][:120] for node in one['nodes'][:3]]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)


def installed_axe(folder: Path) -> Path:
    """axe-core, installed by npm in the folder; skips the test where npm, or its registry, is
    missing."""
    if shutil.which("npm") is None:
        pytest.skip("no npm here, which installs axe-core: apt-get install npm")
    words = ("npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--prefix", folder)
    done = subprocess.run([*words, AXE], capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        pytest.skip(f"npm can't install {AXE}: {done.stderr.strip()[-200:]}")
    return folder / "node_modules" / "axe-core" / "axe.min.js"
