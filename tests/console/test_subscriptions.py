"""The console's pages of subscriptions, with webhooks that are really called."""

import json
import urllib.error
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.conformance.servers import Server
from tests.console.conftest import Console, append, make_stream, send
from tests.http_server import Handler, serving


@dataclass
class Receiver:
    """A webhook on this machine: what it got, and what it answers."""

    status: int = 200
    calls: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()

    class Webhook(Handler):
        def answer(self) -> None:
            made.calls.append(json.loads(self.received()))
            self.respond(made.status, b'{"done": true}')

    with serving(Webhook) as url:
        made.url = f"{url}/hook"
        yield made


def subscribe(server: Server, name: str, **asked: Any) -> None:
    path = f"/v1/stream/__ds/subscriptions/{quote(name, safe='')}"
    send(server, "PUT", path, json.dumps(asked).encode(), Content_Type="application/json")


def test_a_webhook_is_made_tested_and_deleted(console: Console, receiver: Receiver) -> None:
    name = f"hook-{uuid.uuid4().hex[:8]}"
    page = console.open("#/subscriptions")
    page.get_by_role("button", name="Create a subscription").click()
    shown = page.get_by_role("dialog")
    shown.get_by_label("Id").fill(name)
    shown.get_by_label("Streams that it follows").fill(f"{name}/*/**")
    shown.get_by_label("Webhook's URL").fill(receiver.url)
    expect(shown.locator("pre")).to_contain_text('"lease_ttl_ms":30000')
    console.check_accessible()
    shown.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(page.locator("#wake-state")).to_contain_text("idle")
    page.get_by_role("button", name="Test", exact=True).click()
    shown = page.get_by_role("dialog")
    expect(shown.locator("pre")).to_contain_text("Stream-TTL: 3600")
    shown.get_by_role("button", name="Test", exact=True).click()
    expect(shown.get_by_text("Done: 201")).to_be_visible()
    page.keyboard.press("Escape")
    followed = page.get_by_role("link", name=f"{name}/console-test-")
    expect(followed).to_be_visible()
    expect(page.get_by_role("row").filter(has=followed)).to_contain_text(f"{14:016}")
    expect(page.locator("#wake-state")).to_contain_text("idle")
    expect(page.get_by_role("row").filter(has=followed)).to_contain_text("nothing")
    expect(page.locator("#last-delivery")).to_contain_text("last delivered")
    assert [call["subscription_id"] for call in receiver.calls] == [name]
    console.check_accessible()
    page.get_by_role("button", name="Delete", exact=True).click()
    shown = page.get_by_role("dialog")
    expect(shown.get_by_role("button", name="Delete", exact=True)).to_be_disabled()
    shown.get_by_label("to confirm").fill(name)
    shown.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Subscriptions")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        send(console.server, "GET", f"/v1/stream/__ds/subscriptions/{name}")


def test_a_webhook_that_fails_is_seen_and_called_again_at_once(console: Console, receiver: Receiver) -> None:
    name = f"hook-{uuid.uuid4().hex[:8]}"
    receiver.status = 500
    subscribe(console.server, name, type="webhook", pattern=f"{name}/*", webhook={"url": receiver.url})
    append(console.server, make_stream(console.server, [], name=f"{name}/a"), {"n": 1})
    page = console.open(f"#/subscriptions?prefix={name}")
    expect(page.get_by_role("row", name=name)).to_contain_text("failing")
    page.get_by_role("link", name=name).click()
    expect(page.locator("#wake-state")).to_contain_text("the next in")
    expect(page.locator("#last-delivery")).to_contain_text("never delivered")
    expect(page.get_by_role("row", name=f"{name}/a")).to_contain_text("9 bytes")
    receiver.status = 200
    page.get_by_role("button", name="Wake now").click()
    shown = page.get_by_role("dialog")
    expect(shown.locator("pre")).to_contain_text(f"__ds/subscriptions/{name}/wake")
    shown.get_by_role("button", name="Wake", exact=True).click()
    # Its own next attempt may have come just before: then nothing is left to wake for.
    done = shown.get_by_text("Done: 202").or_(
        shown.get_by_text("No stream of the subscription has anything new")
    )
    expect(done).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#wake-state")).to_contain_text("idle")
    expect(page.get_by_role("row", name=f"{name}/a")).to_contain_text(f"{9:016}")


def test_a_worker_that_has_claimed_is_named(console: Console) -> None:
    name = f"pool-{uuid.uuid4().hex[:8]}"
    stream = f"{name}/a"
    make_stream(console.server, [], name=f"{name}-wake")
    make_stream(console.server, [], name=stream)
    asked = {"type": "pull-wake", "streams": [stream], "wake_stream": f"{name}-wake", "lease_ttl_ms": 600_000}
    subscribe(console.server, name, **asked, description="<b>of the night</b>")
    append(console.server, f"/v1/stream/{stream}", {"n": 1})
    claim = json.dumps({"worker": "worker <7>"}).encode()
    path = f"/v1/stream/__ds/subscriptions/{name}/claim"
    send(console.server, "POST", path, claim, Content_Type="application/json")
    page = console.open(f"#/subscriptions?id={name}")
    expect(page.locator("#wake-state")).to_contain_text("claimed by worker <7>")
    expect(page.get_by_text("<b>of the night</b>")).to_be_visible()
    expect(page.get_by_role("link", name=f"{name}-wake")).to_be_visible()
    page.get_by_role("button", name="Wake now").click()
    page.get_by_role("button", name="Wake", exact=True).click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("Another worker has claimed")


def test_subscriptions_are_searched_and_paged(console: Console) -> None:
    group = uuid.uuid4().hex[:8]
    for number in range(52):
        subscribe(
            console.server, f"{group}-{number:02}", type="pull-wake", streams=["x"], wake_stream="wake/none"
        )
    page = console.open("#/subscriptions")
    expect(page.get_by_role("heading", name="Subscriptions")).to_be_visible()
    console.search(group)
    expect(page.get_by_text("50 subscriptions on page 1")).to_be_visible()
    page.get_by_role("button", name="Next page").click()
    expect(page.get_by_text("2 subscriptions on page 2")).to_be_visible()
    page.get_by_label("Id begins with").fill("none-has-this")
    expect(page.get_by_text("No subscription has an id")).to_be_visible()
    console.check_accessible()
