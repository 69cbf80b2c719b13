"""Draws the pictures of the console that the documentation shows: `make pictures`; and, to be judged by eye,
every page at three widths in both themes, into `build/pictures`.

A server of its own is started, filled with streams that look like somebody's, and shown in Chromium.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from tests.browser.chromium import CHROMIUM
from tests.conformance.servers import Server, running, tidemark_server

IMAGES: Final = Path(__file__).resolve().parents[1] / "docs" / "images"
JUDGED: Final = IMAGES.parents[1] / "build" / "pictures"
_PAGES: Final = {
    "front": "/",
    "overview": "/v1/console",
    "streams": "/v1/console#/streams",
    "stream": "/v1/console#/stream?path=%2Fv1%2Fstream%2Forders%2F2026-11-05",
    "answer": "/v1/console#/stream?path=%2Fv1%2Fstream%2Fanswers%2F42",
    "subscriptions": "/v1/console#/subscriptions",
    "api": "/v1/docs",
}
_SIZE: Final = ViewportSize(width=1280, height=800)
_PHONE: Final = ViewportSize(width=360, height=740)
_ANSWER: Final = (
    "Why are there two tides a day? The Moon pulls the near side of the Earth more than its centre."
)


def send(server: Server, method: str, path: str, value: Any = None, **headers: str) -> None:
    body = None if value is None else json.dumps(value).encode()
    named = {"Content-Type": "application/json"} | {
        name.replace("_", "-"): text for name, text in headers.items()
    }
    request = urllib.request.Request(server.base_url + path, body, named, method=method)
    urllib.request.urlopen(request, timeout=60).close()


def fill(server: Server) -> None:
    for number in range(1, 6):
        send(
            server,
            "PUT",
            f"/v1/stream/orders/2026-11-{number:02}",
            [{"order": number * 100 + n, "customer": "ada", "total": 12.5 + n} for n in range(40)],
        )
    send(server, "PUT", "/v1/stream/sessions/7f3a", [{"cursor": 1}], Stream_TTL="3600")
    send(server, "PUT", "/v1/stream/answers/42", [])
    send(server, "POST", "/v1/stream/orders/2026-11-01", Stream_Closed="true")


def write_answer(page: Page, server: Server) -> None:
    """Word by word, while the page is looking on."""
    for number, word in enumerate(_ANSWER.split()):
        producer = {"Producer_Id": "model-a", "Producer_Epoch": "0", "Producer_Seq": str(number)}
        value = {"token": word, "position": number, "usage": {"input": 12, "output": number + 1}}
        send(server, "POST", "/v1/stream/answers/42", [value], **producer)
        page.wait_for_timeout(50 * (1 + number % 5))


def draw_overview(page: Page, server: Server) -> None:
    """While orders come in, and another page waits for the next."""
    reader = page.context.new_page()
    reader.goto(f"{server.base_url}/v1/console#/stream?path=%2Fv1%2Fstream%2Forders%2F2026-11-05")
    expect(reader.locator("#state")).to_contain_text("live")
    page.goto(f"{server.base_url}/v1/console")
    for number in range(150):
        order = {"order": number, "customer": "grace", "total": 7.5 + number}
        send(server, "POST", f"/v1/stream/orders/2026-11-{5 - number % 7 // 4:02}", [order])
        page.wait_for_timeout(200 + 150 * (number // 20 % 3))
    expect(page.get_by_role("region", name="Requests a second")).to_be_visible()
    page.screenshot(path=IMAGES / "console-overview.png")
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=IMAGES / "console-overview-dark.png")
    page.emulate_media(color_scheme="light")
    reader.close()


def draw(page: Page, server: Server) -> None:
    page.goto(f"{server.base_url}/v1/console#/streams")
    expect(page.get_by_role("link", name="answers/42")).to_be_visible()
    page.screenshot(path=IMAGES / "console-streams.png")
    page.get_by_role("link", name="answers/42").click()
    expect(page.locator("#state")).to_contain_text("live")
    write_answer(page, server)
    expect(page.locator("#facts")).to_contain_text(f"{len(_ANSWER.split())} messages")
    page.locator("[role=listbox] [role=option]").nth(8).click()
    page.get_by_role("button", name="Requests").click()
    page.locator(".call").filter(has_text="/v1/stream/answers/42?offset=").filter(
        has_text="200"
    ).first.click()
    expect(page.get_by_text("Server-Timing:")).to_be_visible()
    page.screenshot(path=IMAGES / "console-stream.png")
    phone = page.context.new_page()
    phone.set_viewport_size(_PHONE)
    phone.goto(f"{server.base_url}/v1/console#/stream?path=%2Fv1%2Fstream%2Forders%2F2026-11-05")
    expect(phone.locator("[role=option]").first).to_be_visible()
    phone.screenshot(path=IMAGES / "console-phone.png")


def draw_to_be_judged(browser: Browser, server: Server) -> None:
    JUDGED.mkdir(parents=True, exist_ok=True)
    for width, height in ((360, 740), (1280, 800), (1920, 1080)):
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = context.new_page()
            for name, path in _PAGES.items():
                page.goto("about:blank")
                page.goto(server.base_url + path)
                page.wait_for_timeout(1000)
                page.screenshot(path=JUDGED / f"{name}-{width}-{scheme}.png")
            context.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as name, running(tidemark_server("asgi", Path(name))) as server:
        fill(server)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_context(viewport=_SIZE).new_page()
            draw_overview(page, server)
            draw(page, server)
            draw_to_be_judged(browser, server)
            browser.close()


if __name__ == "__main__":
    main()
