"""Opens a page of a file in a headless Chromium, and says what its console said and how long opening took."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_READY = "html[data-ready=true]"
_TIMEOUT_MS = 120_000.0


def browser_or_reason() -> tuple[str, str]:
    """Return the path of a Chromium and "", or "" and why there is none that can be driven."""
    try:
        import playwright  # noqa: F401
    except ModuleNotFoundError:
        return "", "playwright is not installed"
    path = next((found for name in _NAMES if (found := shutil.which(name))), "")
    return path, "" if path else "no Chromium on the PATH (apt-get install chromium)"


@dataclass
class OpenPage:
    """A page that is open.

    page: Playwright's page
    opened_s: seconds from the start of the navigation until the page said that it is ready
    cpu_s: processor seconds of the page's own thread until then
    complaints: errors and warnings of its console, exceptions, and requests for anything but its own file
    """

    page: Any
    opened_s: float = 0.0
    cpu_s: float = 0.0
    complaints: list[str] = field(default_factory=list)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Start a headless Chromium, and end it."""
    from playwright.sync_api import sync_playwright

    executable, reason = browser_or_reason()
    if not executable:
        raise RuntimeError(reason)
    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        try:
            yield found
        finally:
            found.close()


@contextlib.contextmanager
def opened(browser: Any, path: Path, width: int, *, dark: bool = False, fragment: str = "") -> Iterator[OpenPage]:
    """Open a report in a window of this width, and wait until it is drawn."""
    size: Any = {"width": width, "height": 900}
    page = browser.new_page(viewport=size, color_scheme="dark" if dark else "light", has_touch=width < 600)
    try:
        found, url = OpenPage(page), path.resolve().as_uri()
        page.on("console", lambda message: _note(found, message))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("request", lambda request: _note_request(found, request.url, url))
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        start = time.monotonic()
        page.goto(url + fragment, timeout=_TIMEOUT_MS)
        page.wait_for_selector(_READY, timeout=_TIMEOUT_MS)
        found.opened_s = time.monotonic() - start
        metrics = session.send("Performance.getMetrics")["metrics"]
        found.cpu_s = next(each["value"] for each in metrics if each["name"] == "ThreadTime")
        yield found
    finally:
        page.close()


def drawn_whole(page: Any) -> None:
    """Bring each chart of a page into view, and wait until it is drawn; then go back to the top."""
    for chart in page.query_selector_all(".chart:not([hidden])"):
        if chart.evaluate("host => host.offsetParent !== null"):
            chart.evaluate("host => host.scrollIntoView()")
            page.wait_for_function("host => host.querySelector('svg, canvas')", arg=chart, timeout=_TIMEOUT_MS)
    page.evaluate("scrollTo(0, 0)")


def _note(found: OpenPage, message: Any) -> None:
    if message.type in ("error", "warning"):
        found.complaints.append(message.text)


def _note_request(found: OpenPage, asked: str, own: str) -> None:
    if asked.partition("#")[0] != own and not asked.startswith(("blob:", "data:")):
        found.complaints.append(f"request for {asked}")
