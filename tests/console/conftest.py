"""The console in a real browser, over a real server in each way in."""

import json
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

from tests.browser.chromium import CHROMIUM, FLAGS
from tests.conformance.servers import ROOT, Server, running, tidemark_server

#: Long enough that only a hang reaches it.
PATIENCE_MS: Final = 120_000
AXE: Final = ROOT / "node_modules" / "axe-core" / "axe.min.js"

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module", params=["asgi", "lambda"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tidemark_server(request.param, tmp_path_factory.mktemp("console"))) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one file: as long as it lives, Playwright's event loop runs in the thread of the tests."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: chromium)")
    with sync_playwright() as playwright:
        # Playwright has its own ways for what FLAGS switches beside these.
        args = [flag for flag in FLAGS if flag not in {"--headless", "--enable-logging=stderr"}]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=args)
        yield browser
        browser.close()


@dataclass
class Console:
    """A page of the console, and all that went wrong in it."""

    server: Server
    context: BrowserContext
    page: Page
    faults: list[str] = field(default_factory=list)

    def open(self, address: str = "") -> Page:
        self.page.goto(f"{self.server.base_url}/v1/console{address}")
        return self.page

    def open_stream(self, path: str, **query: str) -> Page:
        more = "".join(f"&{name}={value}" for name, value in query.items())
        return self.open(f"#/stream?path={quote(path, safe='')}{more}")

    @property
    def rows(self) -> Locator:
        """The messages in sight."""
        return self.page.locator("[role=listbox] [role=option]")

    def row(self, text: str) -> Locator:
        return self.rows.filter(has_text=text)

    def search(self, text: str) -> None:
        """Type into the page's search field, by its key. The key is heard once the page is drawn."""
        field = self.page.locator("#search")
        expect(field).to_be_visible()
        while not field.evaluate("field => field === document.activeElement"):
            self.page.keyboard.press("/")
        self.page.keyboard.type(text)

    def check_accessible(self) -> None:
        """axe-core finds nothing."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert found["passes"], "axe did not run"
        assert [
            (each["id"], each["help"], [node["html"] for node in each["nodes"]][:3])
            for each in found["violations"]
        ] == []


@pytest.fixture
def console(server: Server, browser: Browser) -> Iterator[Console]:
    """At the end, nothing may have gone wrong in the page: no error, nothing that the content security policy
    refused, nothing fetched from elsewhere."""
    context = browser.new_context(viewport={"width": 1400, "height": 950})
    context.set_default_timeout(PATIENCE_MS)
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.base_url)
    made = Console(server, context, context.new_page())
    made.page.on("pageerror", lambda error: made.faults.append(str(error)))
    made.page.on("console", lambda said: made.faults.append(said.text) if is_fault(said.text) else None)
    made.page.on("dialog", lambda dialog: made.faults.append(f"a dialog: {dialog.message}"))
    made.page.on("request", lambda request: made.faults.extend(foreign(request.url, server)))
    yield made
    context.close()
    assert made.faults == []


def foreign(url: str, server: Server) -> list[str]:
    return [] if url.startswith((server.base_url, "data:")) else [f"fetched {url}"]


def is_fault(text: str) -> bool:
    """What Chromium logs by itself for a status of 400 and above is none."""
    return "Content Security Policy" in text or "Trusted" in text or "Uncaught" in text


def send(
    server: Server, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, dict[str, str]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(server.base_url + path, body or None, named, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}


def make_stream(
    server: Server,
    messages: list[Any],
    content_type: str = "application/json",
    name: str = "",
    **headers: str,
) -> str:
    """A stream that nobody else uses, with these messages; its path."""
    path = f"/v1/stream/{name or uuid.uuid4().hex[:12]}"
    body = json.dumps(messages).encode() if content_type == "application/json" else b"".join(messages)
    send(server, "PUT", path, body, Content_Type=content_type, **headers)
    return path


def until(page: Page, condition: Callable[[], object]) -> None:
    """Waits while the page goes on: only then do its requests come to the test's handlers."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        page.wait_for_timeout(50)


def append(server: Server, path: str, value: Any) -> None:
    send(server, "POST", path, json.dumps(value).encode(), Content_Type="application/json")
