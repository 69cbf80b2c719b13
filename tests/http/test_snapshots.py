"""Snapshots and bootstrap over HTTP: every status of extensions §2 and §3."""

import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.answers import Answer
from tests.http.asgi import JSON, Door, Make
from tests.mime import parse_parts
from tests.support import HOUR_MS, Clock
from tidemark.http.requests import MAX_BODY_BYTES
from tidemark.janitor.sweep import sweep
from tidemark.service.snapshots import MAX_ANSWER_BYTES

MEGABYTE = 1024 * 1024


def token(offset: int) -> str:
    return f"{offset:016d}"


@dataclass(frozen=True)
class Document:
    """A stream of JSON edits in a bucket of its own. Each edit takes ten bytes in storage."""

    door: Door
    path: str

    def publish(self, offset: int, body: bytes = b'{"folded":true}', **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.door.put(f"{self.path}/snapshot/{token(offset)}", named, body)

    def bootstrap(self) -> Answer:
        return self.door.get(f"{self.path}/bootstrap")


@pytest.fixture
def document(door: Door, make_bucket: Make) -> Document:
    made = Document(door, f"{make_bucket()}/report")
    assert door.put(made.path, JSON).status == 201
    for number in range(4):
        door.post(made.path, JSON, b'{"edit":%d}' % number)
    assert door.head(made.path).next_offset == token(44)
    return made


def parts(answer: Answer) -> list[tuple[str, bytes]]:
    assert answer.status == 200
    return parse_parts(answer.headers["content-type"], answer.body)


def test_a_published_snapshot_is_read_back(door: Door, document: Document) -> None:
    published = document.publish(22, b"<folded/>", Content_Type='Application/XML; charset="utf-8"')
    assert (published.status, published["stream-snapshot-offset"]) == (204, token(22))
    latest = door.get(f"{document.path}/snapshot")
    assert (latest.status, latest["stream-snapshot-offset"]) == (307, token(22))
    assert latest["location"] == f"snapshot/{token(22)}"
    read = door.get(f"{document.path}/snapshot/{token(22)}")
    assert (read.status, read.body) == (200, b"<folded/>")
    assert read["content-type"] == 'Application/XML; charset="utf-8"'
    assert (read["stream-snapshot-offset"], read.next_offset) == (token(22), token(22))
    assert (read["stream-up-to-date"], read["cache-control"]) == (None, "no-store")
    head = door.head(f"{document.path}/snapshot/{token(22)}")
    assert (head.status, head["content-length"]) == (200, "9")
    assert door.head(document.path)["stream-snapshot-offset"] == token(22)
    document.publish(44)
    read = door.get(f"{document.path}/snapshot/{token(44)}")
    assert (read["stream-up-to-date"], read["content-type"]) == ("true", "application/octet-stream")
    assert door.get(f"{document.path}/snapshot/{token(22)}").status == 404


@pytest.mark.parametrize("kind", ["text/html", "text/plain"])
def test_no_answer_with_data_is_a_page_of_this_origin(door: Door, document: Document, kind: str) -> None:
    """A browser runs no script of it, and saves what could have one (`protocol/test_messages.py`). A 304
    renews the headers it has kept."""
    path = f"{document.path}-{kind.replace('/', '-')}"
    door.put(path, {"Content-Type": kind}, b'["<script>"]')
    read = door.get(path)
    answers = [read, door.get(path, {"If-None-Match": read.headers["etag"]})]
    answers += [door.get(f"{path}?offset=-1&live={live}") for live in ("long-poll", "sse")]
    assert [each.status for each in answers] == [200, 304, 200, 200]
    assert document.publish(22, b"<script>", Content_Type=kind).status == 204
    answers += [door.get(f"{document.path}/snapshot/{token(22)}"), document.bootstrap()]
    for number, each in enumerate(answers):
        assert each["content-security-policy"] == "sandbox"
        is_active = kind == "text/html" or number in {3, 5}
        assert each["content-disposition"] == ("attachment" if is_active else None), number


def test_a_snapshot_that_cannot_be_is_refused_with_the_way_on(door: Door, document: Document) -> None:
    assert door.head(document.path)["stream-snapshot-offset"] is None
    for path in (f"{document.path}/snapshot", f"{document.path}/snapshot/{token(0)}"):
        assert door.get(path).status == 404
    missing = f"{document.path}-missing/snapshot"
    assert document.publish(22).status == 204
    assert door.delete(f"{document.path}/snapshot/{token(22)}").status == 409, "it is the visible one"
    assert door.delete(f"{document.path}/snapshot/{token(11)}").status == 404
    gone = document.publish(11)
    assert (gone.status, gone.next_offset) == (410, token(22))
    assert document.publish(10).status == 410
    beyond = document.publish(45)
    assert (beyond.status, beyond.next_offset) == (409, token(44))
    assert document.publish(40).status == 400
    for bad in ("-1", "now", "garbage", "22", "", "%30", "0" * 17, token(22) + "%00", "%E2%82%AC"):
        for path in (f"{document.path}/snapshot/{bad}", f"{missing}/{bad}"):
            assert [door.put(path).status, door.get(path).status, door.delete(path).status] == [400] * 3
    assert door.put(f"{missing}/{token(22)}").status == 404
    assert door.put(f"{document.path}/snapshot/%30{token(22)[1:]}").status == 204, "encoding is undone"
    assert door.put(f"{document.path}/snapshot/{token(22)}", {"Content-Type": "nonsense"}).status == 400


@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"])
def test_an_offset_below_a_snapshot_gets_410_in_every_mode(door: Door, document: Document, live: str) -> None:
    """With and without an ETag, and never as an event stream."""
    tag = door.get(f"{document.path}?offset=-1")["etag"] or ""
    document.publish(22)
    for below in ("-1", token(0), token(11), token(5)):
        for headers in ({}, {"If-None-Match": tag}, {"If-None-Match": "*"}):
            answer = door.get(f"{document.path}?offset={below}{live}", headers)
            assert (answer.status, answer.next_offset) == (410, token(22))
            assert (answer["cache-control"], answer["etag"]) == ("no-store", None)
            assert answer["content-type"] == "application/json"
    for kept in (token(22), token(33), token(44), "now"):
        assert door.get(f"{document.path}?offset={kept}{live}").status in {200, 204}


def test_bootstrap_returns_a_snapshot_and_what_follows(door: Door, document: Document, clock: Clock) -> None:
    edits = [("application/json", b'{"edit":%d}' % number) for number in range(4)]
    answer = document.bootstrap()
    assert parts(answer) == [("application/octet-stream", b""), *edits]
    assert (answer["stream-snapshot-offset"], answer.next_offset) == ("-1", token(44))
    assert (answer["stream-up-to-date"], answer["cache-control"]) == ("true", "no-store")
    assert answer["stream-closed"] is None
    document.publish(22, b"\r\n--x\r\n", Content_Type="text/x")
    for _ in range(2):
        answer = document.bootstrap()
        assert parts(answer) == [("text/x", b"\r\n--x\r\n"), *edits[2:]]
        assert (answer["stream-snapshot-offset"], answer.next_offset) == (token(22), token(44))
        clock.advance(2 * HOUR_MS)
        sweep(door.process.stores)
    door.post(document.path, {"Stream-Closed": "true"})
    assert document.bootstrap()["stream-closed"] == "true"
    assert len(document.bootstrap().body) == int(
        door.head(f"{document.path}/bootstrap").headers["content-length"]
    )


def test_bootstrap_of_a_missing_or_empty_stream_and_with_a_live_mode(door: Door, document: Document) -> None:
    for query in ("live=sse", "live=", "offset=-1&live=sse"):
        assert door.get(f"{document.path}/bootstrap?{query}").status == 400
    assert door.get(f"{document.path}-missing/bootstrap").status == 404
    door.put(f"{document.path}-empty", JSON)
    answer = door.get(f"{document.path}-empty/bootstrap")
    assert parts(answer) == [("application/octet-stream", b"")]
    assert (answer.next_offset, answer["stream-up-to-date"]) == (token(0), "true")


def test_a_bootstrap_that_is_too_large_ends_at_a_message(door: Door, document: Document) -> None:
    """An ordinary read gets the rest."""
    path = f"{document.path}-large"
    door.put(path, {"Content-Type": "application/octet-stream"})
    sent = [bytes([number]) * MEGABYTE for number in range(6)]
    for body in sent:
        door.post(path, {"Content-Type": "application/octet-stream"}, body)
    door.put(f"{path}/snapshot/{token(MEGABYTE)}", {}, bytes(2 * MEGABYTE))
    answer = door.get(f"{path}/bootstrap")
    found = [body for _, body in parts(answer)]
    assert found == [bytes(2 * MEGABYTE), *sent[1:3]]
    assert (answer.next_offset, answer["stream-up-to-date"]) == (token(3 * MEGABYTE), None)
    assert len(answer.body) * 4 / 3 < 6 * 1000 * 1000, "fits a Lambda answer"
    assert door.get(f"{path}?offset={answer.next_offset}").body[:1] == b"\x03"


def test_a_snapshot_of_the_largest_size_is_published_and_no_larger(door: Door, document: Document) -> None:
    body = bytes(MAX_BODY_BYTES)
    assert document.publish(22, body).status == 204
    assert door.get(f"{document.path}/snapshot/{token(22)}").body == body
    answer = document.bootstrap()
    assert parts(answer)[0] == ("application/octet-stream", body)
    assert len(answer.body) * 4 / 3 < 6 * 1000 * 1000
    larger = document.publish(22, body + b"x")
    assert larger.status == 413
    assert str(MAX_BODY_BYTES) in larger.json["error"]
    assert "/upload" in larger.json["error"]
    assert door.get(f"{document.path}/snapshot/{token(22)}").body == body


# --- uploads ------------------------------------------------------------------------


def begin(document: Document, offset: int) -> dict[str, Any]:
    answer = document.door.post(f"{document.path}/snapshot/{token(offset)}/upload")
    assert (answer.status, answer["cache-control"]) == (201, "no-store")
    assert answer.json["method"] == "PUT"
    return answer.json


def put_to(upload: dict[str, Any], body: bytes) -> int:
    """Straight to S3, as any HTTP client would. The signature is over the headers, so S3 refuses a request
    without them."""
    assert "if-none-match" in parse_qs(urlsplit(upload["url"]).query)["X-Amz-SignedHeaders"][0].split(";")
    headers = {"Content-Type": "application/x-folded"} | upload["headers"]
    request = urllib.request.Request(upload["url"], data=body, method="PUT", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def get_from(url: str) -> tuple[str, bytes]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.headers["Content-Type"], answer.read()


@pytest.mark.parametrize(
    "size",
    [*[0, MAX_ANSWER_BYTES, MAX_ANSWER_BYTES + 1], pytest.param(20 * MEGABYTE + 1, marks=pytest.mark.slow)],
)
def test_an_uploaded_snapshot_is_published_and_read_back(door: Door, document: Document, size: int) -> None:
    """It is published by name, and both its own URL and bootstrap return it, whatever its size."""
    upload = begin(document, 22)
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    assert put_to(upload, body) == 200
    assert put_to(upload, body[::-1]) == 412, "it is written once"
    assert door.head(document.path)["stream-snapshot-offset"] is None, "nothing is visible before the publish"
    name = {"Snapshot_Upload": upload["upload"], "Content_Type": "text/x-folded; a=b"}
    for _ in range(2):
        assert document.publish(22, b"", **name).status == 204, "asking twice publishes once"
    assert [put_to(upload, other) for other in (body[::-1], b"x")] == [412, 412]
    read = door.get(f"{document.path}/snapshot/{token(22)}")
    assert (read["stream-snapshot-offset"], read.next_offset) == (token(22), token(22))
    answer = document.bootstrap()
    assert answer["stream-snapshot-offset"] == token(22)
    if size <= MAX_ANSWER_BYTES:
        assert (read.status, read["content-type"], read.body) == (200, "text/x-folded; a=b", body)
        assert parts(answer)[0] == ("text/x-folded; a=b", body)
        return
    assert (read.status, answer.status) == (307, 307)
    for each in (read, answer):
        assert "response-content-disposition=attachment" in each.headers["location"]
    assert get_from(read.headers["location"]) == ("text/x-folded; a=b", body)
    assert (answer.next_offset, answer["stream-up-to-date"]) == (token(22), None)
    assert parse_parts(*get_from(answer.headers["location"])) == [("text/x-folded; a=b", body)]
    assert door.get(f"{document.path}?offset={answer.next_offset}").json == [{"edit": 2}, {"edit": 3}]


def test_an_upload_that_is_missing_lapsed_or_for_another_offset_cannot_be_published(
    door: Door, document: Document, clock: Clock
) -> None:
    upload = begin(document, 22)
    name = {"Snapshot_Upload": upload["upload"]}
    assert document.publish(22, b"", **name).status == 409, "nothing was uploaded"
    assert put_to(upload, b"folded") == 200
    assert document.publish(22, b"body", **name).status == 400
    assert document.publish(33, b"", **name).status == 409, "it was uploaded for another offset"
    assert document.publish(22, b"", Snapshot_Upload="x").status == 400
    assert document.publish(22, b"", Snapshot_Upload="0" * 16 + "-x").status == 409
    clock.advance(25 * HOUR_MS)
    assert sweep(door.process.stores).lapsed >= 1
    assert document.publish(22, b"", **name).status == 409, "it has lapsed"
    assert door.head(document.path)["stream-snapshot-offset"] is None


def test_an_upload_that_was_superseded_is_not_published_again(document: Document) -> None:
    upload = begin(document, 22)
    assert put_to(upload, b"folded") == 200
    name = {"Snapshot_Upload": upload["upload"]}
    assert document.publish(22, b"", **name).status == 204
    assert document.publish(22, b"direct").status == 204
    assert document.publish(22, b"", **name).status == 409
    assert document.publish(33, b"direct").status == 204
    assert document.publish(22, b"", **name).status == 410


def test_a_published_upload_does_not_lapse(door: Door, document: Document, clock: Clock) -> None:
    upload = begin(document, 22)
    assert put_to(upload, bytes(MAX_ANSWER_BYTES + 1)) == 200
    assert document.publish(22, b"", Snapshot_Upload=upload["upload"]).status == 204
    clock.advance(30 * HOUR_MS)
    sweep(door.process.stores)
    location = door.get(f"{document.path}/snapshot/{token(22)}").headers["location"]
    assert len(get_from(location)[1]) == MAX_ANSWER_BYTES + 1
    assert len(get_from(document.bootstrap().headers["location"])[1]) > MAX_ANSWER_BYTES


@pytest.mark.parametrize(("offset", "status"), [(11, 410), (45, 409), (23, 400)])
def test_an_upload_is_refused_as_its_publish_would_be(
    door: Door, document: Document, offset: int, status: int
) -> None:
    document.publish(22)
    assert door.post(f"{document.path}/snapshot/{token(offset)}/upload").status == status
    assert door.post(f"{document.path}-missing/snapshot/{token(offset)}/upload").status == 404
    assert door.post(f"{document.path}/snapshot/now/upload").status == 400
