"""The client's rules, without I/O: what is asked, and what becomes of each answer."""

import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import create_model

import tidemark
from tidemark.client import errors
from tidemark.client.chunks import Chunk, EventParser
from tidemark.client.core import Protocol
from tidemark.client.exchange import Lost, Receive, Reply, Request, Retry, Sleep, Wait, retry_after

URL = "http://server/v1/stream/tides"
AT_42 = {"stream-next-offset": "42"}
LOST = Lost("ReadError")
NOT_SENT = Lost("ConnectError", sent=False)
LATE = Lost("ReadTimeout", is_late=True)
SLOW = Lost("ReadTimeout", seconds=60.0)


def protocol(content_type: str | None = "text/plain", retries: int = 2) -> Protocol:
    return Protocol(URL, content_type, Retry(max_retries=retries))


def play(steps: Generator[Any, Any, Any], *results: Any) -> tuple[list[Any], Any]:
    """What it yielded, and its value; sleeps are slept. Each result answers a request or a receive."""
    waiting, seen, result = list(results), list[Any](), None
    while True:
        try:
            effect = steps.send(result)
        except StopIteration as done:
            assert not waiting, "it asked for less"
            return seen, done.value
        seen.append(effect)
        is_told = isinstance(effect, Wait) and waiting and waiting[0] is TOLD
        result = waiting.pop(0) if is_told or isinstance(effect, Request | Receive) else None


#: The answer to a wait on the socket, where there is one.
TOLD = True


def chunks(seen: Sequence[Any]) -> list[tuple[bytes, str]]:
    return [(one.data, one.offset) for one in seen if isinstance(one, Chunk)]


def append(**options: Any) -> Any:
    return protocol().append("x", **options)


@pytest.mark.parametrize(
    ("steps", "request_sent"),
    [
        (append(), ("POST", {"Content-Type": "text/plain"}, b"x")),
        (append(seq="7"), ("POST", {"Content-Type": "text/plain", "Stream-Seq": "7"}, b"x")),
        (append(if_match='"e"'), ("POST", {"Content-Type": "text/plain", "If-Match": '"e"'}, b"x")),
        (append(create=True), ("POST", {"Content-Type": "text/plain", "Stream-Create": "text/plain"}, b"x")),
        (
            append(create={"ttl": 60}),
            ("POST", {"Content-Type": "text/plain", "Stream-Create": "text/plain", "Stream-TTL": "60"}, b"x"),
        ),
        (append(close=True), ("POST", {"Content-Type": "text/plain", "Stream-Closed": "true"}, b"x")),
        (protocol().close(), ("POST", {"Stream-Closed": "true"}, b"")),
        (protocol().close("x"), ("POST", {"Content-Type": "text/plain", "Stream-Closed": "true"}, b"x")),
    ],
)
def test_options_of_a_write_are_headers(steps: Any, request_sent: tuple[str, dict[str, str], bytes]) -> None:
    [sent], value = play(steps, Reply(204, AT_42 | {"etag": '"f"'}))
    assert (sent.method, sent.headers, sent.body) == request_sent
    assert (value.offset, value.etag) == ("42", '"f"')


def test_a_creation_sends_its_configuration_and_a_fork_the_path_of_its_source() -> None:
    until = datetime(2027, 1, 2, tzinfo=UTC)
    source = "http://server/v1/stream/source"
    fork = protocol(None).create(expires_at=until, forked_from=source, fork_offset="9")
    [sent], _ = play(fork, Reply(201, AT_42))
    assert sent.headers == {
        "Stream-Expires-At": "2027-01-02T00:00:00+00:00",
        "Stream-Forked-From": "/v1/stream/source",
        "Stream-Fork-Offset": "9",
    }
    with pytest.raises(ValueError, match="time zone"):
        play(protocol(None).create(expires_at=until.replace(tzinfo=None)))
    with pytest.raises(ValueError, match=r"0:00:00.500000 has a part of a second"):
        protocol().create(retain_seconds=timedelta(seconds=0.5))
    minute = timedelta(minutes=1)
    [sent], _ = play(protocol().create(ttl=minute, closed=True, data="x"), Reply(201, AT_42))
    assert sent.headers == {"Content-Type": "text/plain", "Stream-TTL": "60", "Stream-Closed": "true"}
    assert sent.body == b"x"
    mode = {"Stream-Compact": "last-by-key"}
    for compact, headers in ((True, mode), ("/id", mode | {"Stream-Compact-Key": "/id"}), (False, {})):
        [sent], _ = play(protocol(None).create(compact=compact), Reply(201, AT_42))
        assert sent.headers == headers


@pytest.mark.parametrize(
    ("data", "content_type", "body"),
    [
        ({"a": "ü"}, "application/json", '[{"a":"ü"}]'.encode()),
        ([1, [2]], "application/json; charset=utf-8", b"[[1,[2]]]"),
        ("text", "application/json", b'["text"]'),
        (b' [{"a": 1}] ', "application/json", b'[[{"a": 1}]]'),
        ({"t": "a\ud83d"}, "application/json", rb'[{"t":"a\ud83d"}]'),
        ("ü", "text/plain", "ü".encode()),
        (b"\x00", "application/octet-stream", b"\x00"),
    ],
)
def test_values_and_bytes_of_a_json_stream_are_one_message(data: Any, content_type: str, body: bytes) -> None:
    assert protocol(content_type).encode_body(data) == body
    with pytest.raises(TypeError, match="a dict cannot be appended to a stream of 'text/plain'"):
        protocol().encode_body({})


NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)


@dataclass
class Step:
    at: datetime
    of: Any = None


def test_a_value_that_json_has_not_needs_a_function_which_is_asked_for_no_other() -> None:
    def default(value: Any) -> Any:
        return str(value) if isinstance(value, Decimal) else value.model_dump(mode="json")

    made = Protocol(URL, "application/json", Retry(), default)
    values = [Decimal("1.10"), create_model("Row", n=int)(n=1), Step(NEW_YEAR, {2**70: 1.5})]
    written = b'["1.10",{"n":1},{"at":"2027-01-01T00:00:00+00:00","of":{"1180591620717411303424":1.5}}]'
    assert made.encode_message(values) == written
    with pytest.raises(TypeError, match="JSON has no Decimal; give the stream a function for it, such as"):
        protocol("application/json").encode_message({"a": values})
    with pytest.raises(ValueError, match="Out of range float"):
        made.encode_message(Step(NEW_YEAR, float("inf")))


WRITTEN = Reply(204, AT_42)
UNKNOWN = Reply(503, {}, b'{"error": "in any words", "outcome": "unknown"}')


@pytest.mark.parametrize(
    ("steps", "first", "outcome"),
    [
        (append, Reply(429, {"retry-after": "3"}), None),
        (append, Reply(500, {}), None),
        (append, Reply(503, {}), None),
        (append, NOT_SENT, None),
        (append, UNKNOWN, errors.UnconfirmedWrite),
        (lambda: append(seq="1"), UNKNOWN, None),
        (append, Reply(502, {}), errors.Unavailable),
        (append, LOST, errors.UnconfirmedWrite),
        (lambda: append(seq="1"), LOST, None),
        (lambda: append(seq="1"), Reply(504, {}), None),
        (lambda: append(if_match="*"), LOST, None),
        (lambda: protocol().close(), LOST, None),
        (lambda: protocol().close("x"), LOST, errors.UnconfirmedWrite),
        (append, Reply(200, {}), errors.MalformedReply),
        (append, Reply(307, {"location": "/"}), errors.StatusError),
        (append, Reply(501, {}), errors.Unavailable),
    ],
)
def test_a_write_is_repeated_only_where_a_second_copy_cannot_be(
    steps: Any, first: Reply | Lost, outcome: type[Exception] | None
) -> None:
    if outcome:
        with pytest.raises(outcome):
            play(steps(), first)
    else:
        (_, slept, _), value = play(steps(), first, WRITTEN)
        assert value.offset == "42"
        assert slept.seconds >= (3 if isinstance(first, Reply) and first.status == 429 else 0.1)


@pytest.mark.parametrize("refused", [Reply(409, {}), Reply(412, {}), Reply(409, {"stream-closed": "true"})])
def test_a_refusal_after_a_lost_answer_may_be_of_a_copy_of_what_was_written(refused: Reply) -> None:
    """A writer that takes it for another's write would write again."""
    with pytest.raises(errors.UnconfirmedWrite, match=rf"{refused.status}; an earlier try, .* may have been"):
        play(append(seq="1", if_match="e"), LOST, refused)
    with pytest.raises(errors.StatusError):
        play(append(seq="1", if_match="e"), Reply(429, {}), refused)


def test_a_delete_whose_answer_was_lost_has_succeeded_if_nothing_is_found_then() -> None:
    play(protocol().delete(), LOST, Reply(404, {}))
    play(protocol().delete(missing_ok=True), Reply(404, {}))
    with pytest.raises(errors.NotFound):
        play(protocol().delete(), Reply(404, {}))


def test_history_asks_for_the_messages_before_an_offset_and_says_where_they_begin() -> None:
    answer = Reply(200, AT_42 | {"stream-start-offset": "40"}, b"ab")
    [sent], chunk = play(protocol().history("42", last=2), answer)
    assert (sent.params, chunk.text) == ({"offset": "42", "last": "2"}, "ab")
    assert (chunk.start, chunk.offset) == ("40", "42")
    told = {"stream-cursor": "7", "etag": f'"{"a" * 16}:{40:016}.0:{42:016}"'}
    of_stream = replace(answer, headers={**answer.headers, **told})
    [sent], chunk = play(protocol().history("42", cursor="6", incarnation="a" * 16), of_stream)
    assert (sent.params["cursor"], chunk.cursor, chunk.incarnation) == ("6", "7", "a" * 16)
    with pytest.raises(errors.MalformedReply, match="only Tidemark reads backwards"):
        play(protocol().history(), Reply(200, AT_42))


def test_a_wait_for_a_server_is_logged_and_its_end_names_the_tries(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(errors.Unreachable) as failed:
        play(protocol(retries=3).head(), *[NOT_SENT] * 4)
    assert [line.getMessage() for line in caplog.records] == [f"HEAD {URL}: ConnectError; trying again"]
    [note] = failed.value.__notes__
    assert note.startswith("It was tried 4 times in ")


@pytest.mark.parametrize("first", [SLOW, Reply(429, {"retry-after": "60"})])
def test_retries_end_after_their_time_whether_tries_or_pauses_took_it(first: Reply | Lost) -> None:
    for max_seconds, tries in ((59, 1), (119, 2)):
        retry = Retry(initial_delay_seconds=1, max_seconds=max_seconds)
        with pytest.raises(errors.StreamError, match=r"ReadTimeout|429"):
            play(Protocol(URL, None, retry).head(), *[first] * tries)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_an_answer_without_a_body_is_told_in_words(status: int) -> None:
    with pytest.raises(errors.StatusError, match=rf"HEAD {URL}: {status}: \w+ .+ \w+"):
        play(protocol(None).append("x"), Reply(status, {}))


def test_a_write_that_is_redirected_says_where_to() -> None:
    """It is not sent there by itself: it might end as a GET."""
    moved = Reply(301, {"location": "https://server/v1/stream/tides?token=secret"}, b"<html>moved</html>")
    with pytest.raises(errors.StatusError, match=r"301: use https://server/v1/stream/tides, where it is$"):
        play(append(), moved)


def test_a_read_gives_up_after_its_retries() -> None:
    for last, expected in ((Reply(500, {}), errors.Unavailable), (LOST, errors.Unreachable)):
        with pytest.raises(expected):
            play(protocol().read("-1", live=False, cursor=None), *[Reply(503, {}), LOST], last)


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (400, {}, errors.InvalidRequest),
        (401, {}, errors.NotAllowed),
        (403, {}, errors.NotAllowed),
        (403, {"producer-epoch": "5"}, errors.ProducerFenced),
        (404, {}, errors.NotFound),
        (409, {}, errors.SequenceConflict),
        (409, {"stream-closed": "TRUE"}, errors.StreamClosed),
        (409, {"stream-closed": "yes"}, errors.SequenceConflict),
        (409, {"producer-expected-seq": "5"}, errors.OutOfOrderSequence),
        (410, {}, errors.StreamGone),
        (412, {}, errors.ETagMismatch),
        (413, {}, errors.StatusError),
        (501, {}, errors.Unavailable),
    ],
)
def test_each_refusal_has_its_exception_and_says_what_the_server_said(
    status: int, headers: dict[str, str], expected: type[errors.StatusError]
) -> None:
    """And not the query, in which a token may be."""
    steps = Protocol(f"{URL}?access_token=secret", "text/plain", Retry()).append("x", seq="1")
    with pytest.raises(expected) as raised:
        play(steps, Reply(status, headers, b'{"error": "no such tide"}'))
    assert type(raised.value) is expected
    assert str(raised.value) == f"POST {URL}: {status}: no such tide"
    assert raised.value.headers == headers


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "Mon, 23 Nov 2026 12:00:30 GMT", "date": "Mon, 23 Nov 2026 12:00:00 GMT"}, 30.0),
        ({"retry-after": "Mon, 23 Nov 2026 12:00:30 GMT", "date": "Mon, 23 Nov 2026 12:01:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "²"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_seconds_or_the_servers_date(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(Reply(429, headers)) == seconds


def test_delays_grow_to_their_maximum() -> None:
    retry = Retry(initial_delay_seconds=1, max_delay_seconds=5)
    for failures, least in ((0, 1), (1, 2), (2, 4), (3, 5), (10_000, 5)):
        assert least <= retry.delay(failures, LOST) <= least * 1.25
    assert retry.delay(2, Reply(503, {"retry-after": "0"})) >= 4, "a reader would ask again without end"
    assert retry.delay(0, Reply(429, {"retry-after": "9" * 400})) <= 86_400 * 1.25, "no clock takes more"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"max_retries": -1}, "max_retries"),
        ({"max_seconds": -1}, "max_seconds"),
        ({"initial_delay_seconds": 0}, "initial_delay_seconds"),
        ({"max_delay_seconds": 0.01}, "max_delay_seconds"),
        ({"multiplier": 0.5}, "multiplier"),
    ],
)
def test_wrong_options_of_a_retry_are_named(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Retry(**options)


@pytest.mark.parametrize("url", ["v1/stream/a", "ftp://server/a", "http://", ""])
def test_what_is_no_url_of_a_stream_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not the URL of a stream"):
        Protocol(url, None, Retry())


EVENTS = [
    (b"event: data\ndata: a\n\n", [("data", "a")]),
    (b"event: data\r\ndata: a\r\ndata:  b\r\n\r\n", [("data", "a\n b")]),
    (b"event:data\rdata:a\r\r", [("data", "a")]),
    ("\ufeffdata: a\u2028b\u0085c\n\n".encode(), [("message", "a\u2028b\u0085c")]),
    (b": comment\n\nevent: nothing\n\ndata\n\n", [("message", "")]),
    (b"event: control\ndata: {}\nid: 7\nretry: 5\n\ndata: cut", [("control", "{}")]),
]


@pytest.mark.parametrize(("sent", "expected"), EVENTS)
def test_events_are_the_same_however_they_are_cut(sent: bytes, expected: list[tuple[str, str]]) -> None:
    """Whole, byte by byte, and cut once at each place."""
    assert EventParser().feed(sent) == expected
    singly = EventParser()
    assert [event for byte in sent for event in singly.feed(bytes([byte]))] == expected
    for cut in range(len(sent)):
        parser = EventParser()
        assert parser.feed(sent[:cut]) + parser.feed(b"") + parser.feed(sent[cut:]) == expected


def page(data: bytes, offset: str, *more: str, content_type: str = "text/plain") -> Reply:
    headers = {"stream-next-offset": offset, "content-type": content_type}
    return Reply(200, headers | dict.fromkeys(more, "true"), data)


def follow(
    live: Any = "auto", gone: Any = "error", content_type: str = "text/plain", offset: str = "-1"
) -> Any:
    return protocol(None if offset == "now" else content_type).follow(offset, live=live, gone=gone)


STREAM = Reply(200, {"content-type": "text/event-stream"})
UP, END = "stream-up-to-date", "stream-closed"
CUT = b""
TAIL = ',"upToDate":true'
CLOSED = b'event: control\ndata: {"streamNextOffset":"%b","streamClosed":true}\n\n'


def events(data: str, offset: int, more: str = "") -> bytes:
    control = f'{{"streamNextOffset":"{offset}"{more}}}'
    return f"event: data\ndata: {data}\n\nevent: control\ndata: {control}\n\n".encode()


FOLLOWED = [
    ("closed", follow(), [page(b"ab", "2", END)], [(b"ab", "2")]),
    ("pages", follow(False), [page(b"a", "1"), page(b"b", "2", UP)], [(b"a", "1"), (b"b", "2")]),
    ("no flag at the tail", follow(False), [page(b"a", "1"), page(b"", "1")], [(b"a", "1"), (b"", "1")]),
    ("a cut between data and its offset, and a lost connection", follow(),
     [page(b"", "0", UP), STREAM, events("a", 1, TAIL) + events("b", 2)[:-1], CUT, STREAM, LOST, STREAM,
      events("b", 2), LOST, page(b"", "2", UP), STREAM, events("c", 3, ',"streamClosed":true')],
     [(b"", "0"), (b"a", "1"), (b"b", "2"), (b"", "2"), (b"c", "3")]),
    ("events of others are skipped", follow("sse"),
     [page(b"", "0", UP), STREAM, b"event: new\ndata: x\n\n" + events("a", 1, ',"streamClosed":true')],
     [(b"", "0"), (b"a", "1")]),
    ("no event stream: long-polls", follow(),
     [page(b"", "0", UP), Reply(400, {}), Reply(204, {"stream-next-offset": "0", UP: "true"}),
      page(b"a", "1", UP), *[page(b"", "1", END)] * 2], [(b"", "0"), (b"a", "1"), (b"", "1")]),
    ("a long-poll tells of the close alone", follow("long-poll"),
     [page(b"", "0", UP), Reply(204, {"stream-next-offset": "0", END: "true"}), page(b"a", "1", END)],
     [(b"", "0"), (b"a", "1")]),
    ("an event stream tells of the close alone", follow("sse"),
     [page(b"", "0", UP), STREAM, CLOSED % b"0", page(b"a", "1", END)], [(b"", "0"), (b"a", "1")]),
    ("a stream that was closed and deleted ends", follow("sse"),
     [page(b"", "0", UP), STREAM, CLOSED % b"0", Reply(404, {})], [(b"", "0"), (b"", "0")]),
    ("event streams that nothing comes through: long-polls", follow(),
     [page(b"", "0", UP), *[STREAM, CUT] * 3, page(b"a", "1", END)], [(b"", "0"), (b"a", "1")]),
    ("the head of an event stream does not come in a few seconds: long-polls", follow(),
     [page(b"", "0", UP), LATE, page(b"", "0", UP), LOST, page(b"a", "1", END)], [(b"", "0"), (b"a", "1")]),
    ("nothing comes of an event stream in a few seconds: long-polls", follow(),
     [page(b"", "0", UP), STREAM, LATE, page(b"a", "1", END)], [(b"", "0"), (b"a", "1")]),
    ("an event stream that is silent after its beginning is opened again, and has more time", follow(),
     [page(b"", "0", UP), STREAM, events("a", 1, TAIL), *[LATE] * 5, STREAM, CLOSED % b"1",
      page(b"", "1", END)], [(b"", "0"), (b"a", "1"), (b"", "1")]),
    ("goes on after failures without end once it had an answer", follow("long-poll"),
     [LOST, page(b"", "0", UP), *[SLOW] * 50, *[Reply(503, {})] * 50, page(b"a", "1", END)],
     [(b"", "0"), (b"a", "1")]),
    ("what is retained begins later", follow(gone="earliest"),
     [Reply(410, {}), Reply(200, AT_42 | {"stream-retained-offset": "40"}), page(b"cd", "42", END)],
     [(b"cd", "42")]),
    ("from now on nothing is caught up with", follow(offset="now"),
     [Reply(200, AT_42 | {"content-type": "text/plain"}), *[LOST] * 5, STREAM,
      events("a", 43, ',"streamClosed":true')], [(b"", "42"), (b"a", "43")]),
    ("what the socket tells is read by a page", follow(),
     [*[page(b"a", "1", UP), TOLD, page(b"", "1", UP), TOLD, page(b"b", "2"), page(b"c", "3", UP)],
      *[TOLD, page(b"", "3", END)]], [(b"a", "1"), (b"b", "2"), (b"c", "3"), (b"", "3")]),
    ("while there is no socket the stream is long-polled", follow("socket"),
     [page(b"a", "1", UP), page(b"b", "2", UP), TOLD, page(b"c", "3", UP), *[page(b"", "3", END)] * 2],
     [(b"a", "1"), (b"b", "2"), (b"c", "3"), (b"", "3")]),
    ("several data events before their offset", follow(content_type="application/json"),
     [page(b"[]", "0", UP, content_type="application/json"), STREAM,
      b"event: data\ndata: [1]\n\n" + events("[2,3]", 1) + events("[]", 2, ',"streamClosed":true'),
      page(b"[]", "2", END, content_type="application/json")], [(b"", "0"), (b"[1,2,3]", "1"), (b"", "2")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "answers", "expected"), [case[1:] for case in FOLLOWED], ids=[c[0] for c in FOLLOWED]
)
def test_following_hands_out_each_chunk_once(steps: Any, answers: list[Any], expected: list[Any]) -> None:
    seen, _ = play(steps, *answers)
    assert chunks(seen) == expected


def test_a_page_that_the_socket_told_of_is_not_waited_for() -> None:
    told = page(b"a", "1", UP, "stream-cursor")
    seen, _ = play(follow("socket"), page(b"", "0", UP), TOLD, told, page(b"b", "2", END))
    asked = [one.params for one in seen if isinstance(one, Request)]
    assert asked[1:] == [{"offset": "0"}, {"offset": "1", "live": "long-poll", "cursor": "true"}]


OLD, NEW = "hVoUT3vW1_oWzWtg", "pQ0c8jv1nY2sXa7D"


def of(incarnation: str, reply: Reply) -> Reply:
    """A proxy that packs a response makes its tag weak."""
    weak = "W/" * (incarnation == NEW)
    etag = f'{weak}"{incarnation}:{0:016}.0a:{9:016}"'
    return Reply(reply.status, {**reply.headers, "etag": etag}, reply.body)


@pytest.mark.parametrize("gone", ["error", "earliest"])
@pytest.mark.parametrize(
    ("offset", "answers"),
    [
        ("7", [of(NEW, page(b"new", "10", UP))]),
        ("7", [Reply(410, {}), of(NEW, Reply(200, AT_42 | {"stream-retained-offset": "40"}))]),
        ("7", [of(OLD, page(b"a", "8")), of(NEW, page(b"b", "9", UP))]),
        ("7",
         [*[of(OLD, page(b"a", "8", UP)), STREAM, events("b", 9), CUT, page(b"", "9", UP)],
          *[Reply(410, {}), of(NEW, Reply(200, AT_42))]]),
        ("now", [of(NEW, Reply(200, AT_42))]),
        ("now", [of(OLD, Reply(200, AT_42)), of(NEW, STREAM)]),
    ],
)  # fmt: skip
def test_another_incarnation_is_not_gone_on_with(gone: Any, offset: str, answers: list[Any]) -> None:
    with pytest.raises(errors.StreamReplaced, match=r"created again.*begin again from offset -1"):
        play(protocol().follow(offset, gone=gone, incarnation=OLD), *answers)


def test_what_a_stream_retains_is_not_looked_for_in_another() -> None:
    retained = of(OLD, Reply(200, AT_42 | {"stream-retained-offset": "40"}))
    steps = protocol().follow("7", gone="earliest", incarnation=OLD)
    with pytest.raises(errors.StreamReplaced):
        play(steps, Reply(410, {}), retained, of(NEW, page(b"new", "50", UP)))


@pytest.mark.parametrize(
    "answers",
    [
        [of(OLD, page(b"a", "8")), of(NEW, page(b"b", "9", UP)), of(NEW, page(b"new", "3", END))],
        [of(OLD, page(b"a", "8")), Reply(410, {}), *[LOST] * 5, of(NEW, Reply(200, AT_42)), *[LOST] * 5,
         of(NEW, page(b"new", "3", END))],
    ],
)  # fmt: skip
def test_a_reader_of_a_name_begins_the_next_stream_that_has_it(answers: list[Any]) -> None:
    seen, _ = play(protocol().follow("7", on_recreated="restart", incarnation=OLD), *answers)
    found = [(one.data, one.incarnation) for one in seen if isinstance(one, Chunk)]
    assert found == [(b"a", OLD), (b"new", NEW)]
    reads = [one for one in seen if isinstance(one, Request) and one.method == "GET"]
    assert reads[-1].params["offset"] == "-1"


def test_a_reader_from_now_on_begins_where_the_stream_ended_when_it_asked() -> None:
    """A connection that is lost at first is opened from there, and not from a later `now`."""
    there, tail = Reply(200, AT_42 | {"content-type": "text/plain"}), page(b"", "42", END)
    seen, _ = play(follow("sse", offset="now"), there, LOST, STREAM, CUT, STREAM, CLOSED % b"42", tail)
    assert {one.params.get("offset") for one in seen if isinstance(one, Request)} == {None, "42"}


def test_half_a_character_of_the_stream_before_is_not_part_of_the_next() -> None:
    half, whole = of(OLD, page(b"a\xf0\x9f", "10")), of(NEW, page(b"new", "3", END))
    seen, _ = play(protocol().follow("7", on_recreated="restart", incarnation=OLD), half, whole, whole)
    assert [(one.text, one.offset) for one in seen if isinstance(one, Chunk)] == [("a", "08"), ("new", "3")]


def test_a_reader_that_is_first_waits_for_its_stream() -> None:
    there, missing = Reply(200, AT_42), Reply(404, {})
    seen, _ = play(protocol().follow(missing="wait"), *[missing] * 9, there, page(b"a", "1", END))
    pauses = [one.seconds for one in seen if isinstance(one, Sleep)]
    assert chunks(seen) == [(b"a", "1")]
    assert len(pauses) == 9
    assert 0 < pauses[0] < max(pauses) <= 1
    play(protocol().follow(missing="wait"), missing, *[LOST] * 5, there, *[LOST] * 5, page(b"a", "1", END))
    with pytest.raises(errors.NotFound):
        play(protocol().follow(missing="wait"), Reply(200, AT_42), page(b"a", "1"), missing)


def test_a_reader_of_a_name_waits_between_two_streams() -> None:
    there, missing = Reply(200, AT_42), Reply(404, {})
    answers = [there, page(b"a", "1"), missing, missing, there, page(b"new", "3", END)]
    seen, _ = play(protocol().follow(missing="wait", on_recreated="restart"), *answers)
    assert chunks(seen) == [(b"a", "1"), (b"new", "3")]


@pytest.mark.parametrize(
    "etag", [None, '"a:1"', 'W/"b"', '"L3YxL3N0cmVhbS8:-1:0000000000000000_0000000000000012"']
)
def test_other_servers_tags_tell_no_incarnation(etag: str | None) -> None:
    first, last = page(b"a", "1"), page(b"b", "2", END)
    tagged = Reply(200, {**first.headers} | ({"etag": etag} if etag else {}), first.body)
    seen, _ = play(follow(), tagged, of(OLD, last))
    assert [one.incarnation for one in seen if isinstance(one, Chunk)] == [None, OLD]
    assert {one.content_type for one in seen if isinstance(one, Chunk)} == {"text/plain"}


def test_base64_is_decoded_however_its_lines_are_broken() -> None:
    data = bytes(range(256))
    text = b64encode(data).decode()
    encoded = Reply(200, {**STREAM.headers, "stream-sse-data-encoding": "base64"})
    sent = events(text[:8] + "\ndata: " + text[8:], 256, ',"streamClosed":true')
    seen, _ = play(follow(), page(b"", "0", UP), encoded, sent)
    assert chunks(seen) == [(b"", "0"), (data, "256")]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([page(b"", "0", UP), STREAM, b"event: control\ndata: {broken\n\n"], errors.MalformedReply),
        ([page(b"", "0", UP), STREAM, b"event: control\ndata: \n\n"], errors.MalformedReply),
        ([page(b"", "0", UP), STREAM, b"event: control\ndata: {}\n\n"], errors.MalformedReply),
        ([page(b"", "0", UP), Reply(404, {})], errors.NotFound),
        ([page(b"", "0", UP), Reply(401, {})], errors.NotAllowed),
        ([Reply(410, {})], errors.StreamGone),
        ([Reply(200, {}, b"<html>")], errors.MalformedReply),
        ([LOST, LOST, NOT_SENT], errors.Unreachable),
    ],
)
def test_following_ends_where_waiting_does_not_help(answers: list[Any], expected: type[Exception]) -> None:
    with pytest.raises(expected):
        play(follow(), *answers)
    if expected is errors.Unreachable:
        with pytest.raises(expected):
            play(follow("sse", offset="now"), *answers)


def test_a_server_that_does_not_wait_is_not_asked_in_a_circle() -> None:
    waited = Reply(204, {"stream-next-offset": "0", UP: "true"}, seconds=20.0)
    at_once = replace(waited, seconds=0.01)
    answers = [page(b"", "0", UP), *[at_once] * 3, waited, page(b"a", "1", UP), *[page(b"", "1", END)] * 2]
    seen, _ = play(follow("long-poll"), *answers)
    pauses = [one.seconds for one in seen if isinstance(one, Sleep)]
    assert len(pauses) == 3
    assert [round(pause / 1.125, 1) for pause in pauses] == [0.1, 0.2, 0.4]


@pytest.mark.parametrize("live", ["long-poll", False])
def test_data_behind_which_the_same_is_asked_again_is_a_malformed_reply(live: Any) -> None:
    answers = [page(b"a", "1"), page(b"b", "1")]
    with pytest.raises(errors.MalformedReply, match="1 bytes at offset 1, and 1 again"):
        play(follow(live), *answers)
    with pytest.raises(errors.MalformedReply, match="1 again"):
        play(follow("sse"), page(b"a", "1", UP), STREAM, events("b", 1))


HALF, REST = "€".encode()[:2], "€".encode()[2:]


@pytest.mark.parametrize(
    ("steps", "answers", "expected"),
    [
        (follow(False), [page(b"a" + HALF, "3"), page(REST + b"b", "5", UP)], [("a€b".encode(), "5")]),
        (follow(False), [page(b"a" + HALF, "3"), of(OLD, page(REST, "4", UP))], [("a€".encode(), "4")]),
        (follow(False), [page(b"a", "1"), page(HALF, "3", UP)], [(b"a", "1")]),
        (follow(False), [of(OLD, page(b"a" + HALF, "03", UP))], [(b"a", "01")]),
        (protocol().follow(live=False, whole_text=False), [page(b"a", "1"), page(HALF, "3", UP)],
         [(b"a", "1"), (HALF, "3")]),
        (follow("sse"),
         [page(HALF[:1], "1", UP), page(HALF[1:], "2", UP), page(b"", "2", UP), page(REST, "3", UP), STREAM,
          CLOSED % b"3", page(b"", "3", END)], [("€".encode(), "3"), (b"", "3")]),
        (follow("long-poll"), [page(HALF, "2", UP), page(REST, "3", END)], [("€".encode(), "3")]),
        (follow("long-poll"), [page(HALF, "2", END)], [(HALF, "2")]),
        (follow("long-poll", content_type="a/b"),
         [page(HALF, "2", UP, content_type="a/b"), page(REST, "3", END, content_type="a/b")],
         [(HALF, "2"), (REST, "3")]),
    ],
)  # fmt: skip
def test_text_is_handed_out_in_whole_characters(steps: Any, answers: list[Any], expected: list[Any]) -> None:
    """An append may end inside one. What is handed out at last, or as bytes, is what there is."""
    seen, _ = play(steps, *answers)
    assert chunks(seen) == expected
    assert Chunk(HALF, "2").text == "\ufffd"


def test_one_read_goes_on_to_the_end_of_a_character() -> None:
    _, chunk = play(protocol().read(), page(b"a" + HALF, "3"), page(REST, "4"))
    assert (chunk.text, chunk.offset) == ("a€", "4")


def test_an_option_that_does_not_exist_is_named_at_once() -> None:
    with pytest.raises(TypeError, match="no option 'time_to_live'; it has ttl, "):
        protocol().create(time_to_live=3)  # type: ignore[call-arg]
    with pytest.raises(
        ValueError, match="live is 'foo'; it must be one of 'auto', 'socket', 'sse', 'long-poll', False"
    ):
        follow("foo")
    with pytest.raises(ValueError, match="gone is 'skip'"):
        follow(gone="skip")
    with pytest.raises(ValueError, match="live is True"):
        play(protocol().read(live=True))  # type: ignore[arg-type]


def test_messages_that_are_not_json_are_told() -> None:
    assert Chunk(b'[1,{"a":2}]', "9").messages == [1, {"a": 2}]
    assert Chunk(b"", "9").messages == []
    with pytest.raises(errors.MalformedReply, match="up to 9 is not JSON"):
        _ = Chunk(b'[1,{"a"', "9").messages
    with pytest.raises(TypeError, match="this one is text/plain: use text or data"):
        _ = Chunk(b"1", "9", "text/plain").messages


def test_json_that_is_nested_too_deeply_is_a_reply_like_any_other_that_is_not_json() -> None:
    deep = b"[" * 5000
    with pytest.raises(errors.MalformedReply, match="up to 9 is not JSON"):
        _ = Chunk(deep, "9").messages
    assert not Reply(503, {}, deep).outcome_is_unknown
    assert str(errors.refusal("get", 400, {}, deep, {})).endswith("[" * 200)


def test_the_names_of_the_client_are_known_to_people_and_to_checkers() -> None:
    assert {"Stream", "StreamClosed", "proxy_transport"} <= set(dir(tidemark))
    assert sorted(getattr(tidemark, "__all__")) == sorted(dir(tidemark))  # noqa: B009
    with pytest.raises(AttributeError, match="Strem"):
        _ = tidemark.Strem  # type: ignore[attr-defined]


#: Of these lines only those behind `# wrong` are mistakes.
CHECKED = """\
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypedDict
from tidemark import AsyncStream, Stream
class Step(TypedDict, total=False): tools: list[str]
@dataclass
class Order: id: int
step: Step = {"tools": ["search"]}; lines: dict[str, list[str]] = {"a": ["b"]}
stream, any_object = Stream("u"), Stream("u", default=str)
stream.append(b"a"); stream.append("a"); stream.append([1, {"a": [None, 2.5]}]); stream.append(lines)
stream.append(step); stream.append([step]); stream.append({"order": Order(1), "at": datetime.now(UTC)})
any_object.append({"price": Decimal(1)}); any_object.producer("p").append({1, 2})
Stream.create("u", default=lambda model: model.dump(), data=object()).append(object())
def write(made: Stream, message: dict[str, Any]) -> None: made.append(message)
write(any_object, {}); write(stream, {})
async def main(log: AsyncStream) -> None:
    await log.append(step)
# wrong
    log.append(step)
    await log.append({"a": {1}})
    await log.producer("p").append(object())
from tidemark import Strem
Stream("u", tokn="a")
stream.append(object())
stream.append({1, 2})
stream.append({"price": [Decimal(1)]})
stream.producer("p").append(object())
stream.producer("p", linger=1)
Stream.create("u", data=object())
Stream.create("u", tll=60)
stream.follow(ofset="1")
stream.read().txt
"""


def test_a_type_checker_finds_mistakes_and_only_mistakes() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "-c", CHECKED]
    package = {"MYPYPATH": str(Path(tidemark.__file__).parents[1])}
    checked = subprocess.run(command, env=package, check=False, capture_output=True, text=True)
    found, wrong = checked.stdout, CHECKED.splitlines().index("# wrong") + 2
    places = {int(number) for number in re.findall(r"<string>:(\d+): error", found)}
    assert places == {*range(wrong, len(CHECKED.splitlines()) + 1)}, found
    assert 'maybe "Stream"?' in found
