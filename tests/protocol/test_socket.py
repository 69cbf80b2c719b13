"""The messages of a socket: what a client may send, and what it is told."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol import socket
from tidemark.protocol.caching import decide_catch_up_cursor
from tidemark.protocol.errors import Malformed
from tidemark.protocol.expiry import NEVER, Expiry
from tidemark.protocol.messages import parse_content_type
from tidemark.protocol.tail import Tail

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ("{}", socket.Frame()),
        ('{"watch": ["/v1/stream/a"]}', socket.Frame(watch=("/v1/stream/a",))),
        ('{"watch": ["/v1/stream/a", "/v1/stream/a"]}', socket.Frame(watch=("/v1/stream/a",))),
        ('{"watch": ["/b/c"], "token": "t"}', socket.Frame(watch=("/b/c",), token="t")),
        ('{"watch": ["/b/c"], "data": true}', socket.Frame(watch=("/b/c",), data=True)),
        ('{"unwatch": ["/b/c"], "later": 1}', socket.Frame(unwatch=("/b/c",))),
        ('{"token": null}', socket.Frame()),
    ],
)
def test_a_frame_names_streams_and_may_have_a_token(text: str, frame: socket.Frame) -> None:
    assert socket.parse_frame(text) == frame


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be JSON"),
        ("{", "must be JSON"),
        ('{"watch": ["\ud800"]}', "must be JSON"),
        ("[" * 100_000, "at most 16384 bytes"),
        ("[" * 15_000, "must be JSON"),
        ("[]", "must be a JSON object"),
        ("7", "must be a JSON object"),
        ('{"watch": "/v1/stream/a"}', "watch must be a list"),
        ('{"watch": [{}]}', "watch must be a list"),
        ('{"unwatch": [7]}', "unwatch must be a list"),
        ('{"token": 7}', "token must be a string"),
        ('{"token": "' + "x" * socket.MAX_SENT_BYTES + '"}', "at most 16384 bytes"),
        (json.dumps({"watch": [f"/b/{n}" for n in range(socket.MAX_NAMED + 1)]}), "at most 100 streams"),
    ],
)
def test_a_frame_that_cannot_be_used_is_refused_with_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        socket.parse_frame(text)


@given(st.text())
def test_whatever_the_text_it_is_a_frame_or_malformed(text: str) -> None:
    with suppress(Malformed):
        assert isinstance(socket.parse_frame(text), socket.Frame)


@pytest.mark.parametrize(
    ("expiry", "token_left_ms", "seconds"),
    [
        (NEVER, None, 3600),
        (NEVER, 90_500, 91),
        (NEVER, -5, 1),
        (NEVER, 7_200_000, 3600),
        # A window of 100 s lasts 105 s; a reader that waits renews it 5 s before its end.
        (Expiry(ttl_seconds=100), None, 100),
        (Expiry(ttl_seconds=100), 3000, 3),
        (Expiry(ttl_seconds=86_400), None, 3600),
        (Expiry(expires_at="…", expires_at_ms=NOW_MS + 10_001), None, 11),
    ],
)
def test_a_watch_lasts_no_longer_than_the_token_and_than_the_stream_without_a_renewal(
    expiry: Expiry, token_left_ms: int | None, seconds: int
) -> None:
    token_until_ms = None if token_left_ms is None else NOW_MS + token_left_ms
    assert socket.decide_lease_seconds(expiry, NOW_MS, NOW_MS, token_until_ms) == seconds


NEWS = socket.News("aaaaaaaaaaaaaaaa", 40, b'{"a":1},', 0xC0FFEE)


@pytest.mark.parametrize(
    ("content_type", "stored", "sent"),
    [
        ("application/json", b'{"a":1},"\xc3\xa9",', {"data": '[{"a":1},"é"]'}),
        ("application/json; x=1", b"", {"data": ""}),
        ("text/plain", b"[1],", {"data": "[1],"}),
        ("text/plain", b"\xc3", {"data": "ww==", "encoding": "base64"}),
        ("application/octet-stream", b"\0\xff", {"data": "AP8=", "encoding": "base64"}),
    ],
)
def test_news_have_data_as_a_read_has_them(content_type: str, stored: bytes, sent: dict[str, str]) -> None:
    kind = parse_content_type(content_type)
    tail = Tail(42, closed=True)
    message = socket.news_message("/b/c", tail, socket.render_news(tail, kind, NEWS._replace(stored=stored)))
    assert message == {
        "stream": "/b/c",
        "offset": "0000000000000042",
        "closed": True,
        "from": "0000000000000040",
        "type": kind.served,
        "cursor": decide_catch_up_cursor(None, "aaaaaaaaaaaaaaaa"),
        "etag": '"aaaaaaaaaaaaaaaa:0000000000000040.00c0ffee:0000000000000042:c"',
        **sent,
    }


@pytest.mark.parametrize("character", ["x", '"', "\x00", "🌊"])
def test_data_that_do_not_fit_a_frame_are_left_to_a_read(character: str) -> None:
    kind, tail = parse_content_type("text/plain"), Tail(42)
    for size in range(0, socket.MAX_FRAME_BYTES, 501):
        message = socket.news_message(
            "/b/c", tail, socket.render_news(tail, kind, NEWS._replace(stored=character.encode() * size))
        )
        [frame] = socket.render_messages([message])
        assert len(frame.encode()) <= socket.MAX_FRAME_BYTES
        assert ("data" in message) or (message == socket.tail_message("/b/c", tail) and size > 4000)


@given(st.lists(st.text(max_size=3000), max_size=60))
def test_messages_come_in_order_in_frames_that_api_gateway_takes(names: list[str]) -> None:
    messages = [socket.error_message(name, 404, "gone") for name in names if name.isprintable()]
    frames = socket.render_messages(messages)
    assert all(len(frame.encode()) <= socket.MAX_FRAME_BYTES for frame in frames)
    listed = [frame if frame[0] == "[" else f"[{frame}]" for frame in frames]
    told = [each for frame in listed for each in json.loads(frame)]
    assert told == messages


@pytest.mark.parametrize(
    "reason", ["gone", "x" * 150, "🌊" * 80], ids=["short", "long", "of long characters"]
)
def test_the_answer_to_a_frame_is_one_frame_that_api_gateway_takes(reason: str) -> None:
    names = [f"/v1/stream/{number:03}{'x' * 145}" for number in range(socket.MAX_NAMED)]
    [sent] = socket.render_watches(names, None)
    assert socket.MAX_SENT_BYTES - len(sent) < 200
    watched, *refused = names
    messages = [
        socket.tail_message(watched, Tail(42), 60),
        *(socket.error_message(name, 400, reason) for name in refused),
    ]
    answer = socket.render_answer(messages)
    assert len(answer.encode()) <= socket.MAX_FRAME_BYTES
    told = json.loads(answer)
    assert told[0] == messages[0]
    assert [each["stream"] for each in told] == names
    assert {(each["status"], bool(each["error"])) for each in told[1:]} == {(400, True)}


@given(st.lists(st.text(max_size=3000), max_size=250), st.none() | st.text(max_size=5000))
def test_whatever_a_client_names_its_frames_can_be_parsed(names: list[str], token: str | None) -> None:
    names = [name for name in dict.fromkeys(names) if name.isprintable()]
    token = token if token is None or token.isprintable() else None
    watches, unwatches = socket.render_watches(names, token), socket.render_unwatches(names)
    parsed = [socket.parse_frame(frame) for frame in watches]
    assert [name for frame in parsed for name in frame.watch] == names
    assert all(frame.token == token and frame.data for frame in parsed)
    assert [name for frame in unwatches for name in socket.parse_frame(frame).unwatch] == names
    assert len(watches) <= 1 + len(names) // 2


@pytest.mark.parametrize("text", ["", "{", "7", '["a"]', "[[]]", '{"a": "\ud800"}'])
def test_what_is_no_message_of_a_server_is_malformed(text: str) -> None:
    with pytest.raises(Malformed, match="The server's message is not"):
        socket.parse_messages(text)
