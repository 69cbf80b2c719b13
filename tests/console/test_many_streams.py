"""Paging through 100,000 streams: each page asks once, and holds no more than itself.

The listing is answered here as the server answers it, by the item of a real stream, because 100,000 creations
take minutes.
That a page costs the server the same calls wherever it is, `tests/http/test_catalog.py` says.
"""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Route, expect

from tests.console.conftest import PATIENCE_MS, Console, make_stream

STREAMS: Final = 100_000
PAGE: Final = 50
LOOKED_AT: Final = 40


@dataclass
class ManyStreams:
    """The names `many/00000` to `many/99999`, and what was asked of them."""

    item: dict[str, Any]
    asked: list[dict[str, str]] = field(default_factory=list)

    def answer(self, route: Route) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(route.request.url).query).items()}
        self.asked.append(query)
        prefix, after, limit = query.get("prefix", ""), query.get("after", ""), int(query["limit"])
        names = [name for name in _NAMES if name.startswith(prefix) and name > after]
        page = [self.item | {"stream_id": name} for name in names[:limit]]
        more = len(names) > limit
        body = {
            "prefix": prefix,
            "stream_count": len(page),
            "streams": page,
            "next_cursor": page[-1]["stream_id"] if more else None,
            "has_more": more,
        }
        route.fulfill(json=body)


_NAMES: Final = [f"many/{number:05}" for number in range(STREAMS)]


@pytest.fixture
def many(console: Console) -> ManyStreams:
    """A page of the real listing has the members that the made one has."""
    name = make_stream(console.server, [{"n": 1}]).removeprefix("/v1/stream/")
    with urllib.request.urlopen(f"{console.server.base_url}/v1/streams?limit=1&prefix={name}") as answer:
        real = json.load(answer)
    assert set(real) == {"prefix", "stream_count", "streams", "next_cursor", "has_more"}
    made = ManyStreams(real["streams"][0])
    console.page.route("**/v1/streams?*", made.answer)
    return made


def nodes(console: Console) -> int:
    return int(console.page.evaluate("document.querySelectorAll('*').length"))


def test_a_hundred_thousand_streams_are_paged_through(console: Console, many: ManyStreams) -> None:
    """By as many requests as pages, each for its own names alone. The fortieth is no larger."""
    page = console.open("#/streams")
    expect(page.get_by_text("50 streams on page 1")).to_be_visible()
    before = nodes(console)
    for number in range(2, LOOKED_AT + 1):
        page.get_by_role("button", name="Next page").click()
        expect(page.get_by_text(f"50 streams on page {number}", exact=True)).to_be_visible()
    expect(page.locator("tbody a").first).to_have_text(f"many/{PAGE * (LOOKED_AT - 1):05}")
    assert [query.get("after", "") for query in many.asked] == [
        "",
        *(f"many/{PAGE * number - 1:05}" for number in range(1, LOOKED_AT)),
    ]
    assert {query["limit"] for query in many.asked} == {str(PAGE)}
    assert page.locator("tbody tr").count() == PAGE
    assert nodes(console) == before, "a later page holds as much as the first"
    page.get_by_role("button", name="Previous page").click()
    expect(page.locator("tbody a").first).to_have_text(f"many/{PAGE * (LOOKED_AT - 2):05}")
    page.get_by_role("button", name="First page").click()
    expect(page.locator("tbody a").first).to_have_text("many/00000")


def test_a_prefix_leads_to_the_end_of_a_hundred_thousand_streams(console: Console, many: ManyStreams) -> None:
    page = console.open("#/streams")
    expect(page.get_by_text("50 streams on page 1")).to_be_visible()
    console.search("many/9999")
    expect(page.get_by_text("10 streams on page 1")).to_be_visible()
    expect(page.locator("tbody a").last).to_have_text("many/99999")
    expect(page.get_by_role("button", name="Next page")).to_be_disabled()


def test_the_page_of_a_list_is_there_again_after_a_stream_was_looked_at(
    console: Console, many: ManyStreams
) -> None:
    page = console.open("#/streams")
    for number in (2, 3):
        page.get_by_role("button", name="Next page").click()
        expect(page.get_by_text(f"50 streams on page {number}")).to_be_visible()
    page.get_by_role("link", name="many/00120").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("many/00120")
    page.go_back()
    expect(page.get_by_text("50 streams on page 3")).to_be_visible()
    expect(page.locator("tbody a").first).to_have_text("many/00100")
    page.get_by_role("button", name="Previous page").click()
    expect(page.locator("tbody a").first).to_have_text("many/00050")


def test_the_address_of_a_page_opens_that_page_for_somebody_else(console: Console, many: ManyStreams) -> None:
    """Who opens it has not seen the pages before it, and can go to the first."""
    page = console.open("#/streams?after=many/77777")
    expect(page.get_by_text("50 streams behind many/77777")).to_be_visible()
    expect(page.locator("tbody a").first).to_have_text("many/77778")
    expect(page.get_by_role("button", name="Previous page")).to_be_disabled()
    page.get_by_role("button", name="First page").click()
    expect(page.get_by_text("50 streams on page 1")).to_be_visible()


def test_the_next_page_is_asked_for_once_while_it_is_on_its_way(console: Console, many: ManyStreams) -> None:
    page = console.open("#/streams")
    expect(page.get_by_text("50 streams on page 1")).to_be_visible()
    held: list[Route] = []
    page.unroute_all()
    page.route("**/v1/streams?*", lambda route: held.append(route))  # noqa: PLW0108 - a built-in method is refused
    page.get_by_role("button", name="Next page").click()
    expect(page.get_by_role("button", name="Next page")).to_be_disabled()
    expect(page.get_by_text("Loading…")).to_be_visible()
    for _ in range(PATIENCE_MS // 50):
        if held:
            break
        page.wait_for_timeout(50)
    many.answer(held[0])
    expect(page.get_by_text("50 streams on page 2")).to_be_visible()
    expect(page.locator("tbody a").first).to_have_text("many/00050")
    assert len(held) == 1
