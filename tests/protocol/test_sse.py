"""Server-sent events: what a browser would read out of what is written."""

import base64
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.event_source import Event, parse_comments, parse_events
from tidemark.protocol import sse
from tidemark.protocol.messages import ContentType, parse_content_type, parse_messages

TEXT = parse_content_type("text/plain")
JSON = parse_content_type("application/json")
BINARY = parse_content_type("application/octet-stream")

#: Much of what a frame is made of, and some of everything else.
texts = st.text(
    alphabet=st.one_of(
        st.sampled_from("\r\n\0 :\ufeff\u2028\u0085abdt"), st.characters(exclude_categories=["Cs"])
    ),
    max_size=30,
)


def normalised(text: str) -> str:
    """A reader sees every line end as one newline; that much an event stream cannot keep."""
    return re.sub(r"\r\n|\r", "\n", text)


HOSTILE = (
    " leading", "  two", "\n", "\n\n", "a\n", "\na", "a\r\nb\rc\nd", "\r\n\r\n", "\0", "a\0b", ":",
    ": comment", "data: x\n\nevent: control\ndata: {}", "event: control\n\n", "id: 7\nretry: 1", "\ufeffbom",
    "line\u2028separator\u0085next",
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_text_cannot_end_its_event_or_begin_another(text: str) -> None:
    [event] = parse_events(sse.render_data_event(TEXT, text.encode(), 7, 345))
    assert event == Event("data", normalised(text))


@pytest.mark.parametrize(
    ("stored", "read"),
    [(b"\x8c\x8a!", "\ufffd\ufffd!"), (b"a\xf0\x9f\x8c", "a\ufffd"), (b"\xff\nb", "\ufffd\nb")],
)
def test_what_is_no_character_of_a_text_is_replaced(stored: bytes, read: str) -> None:
    event = sse.render_data_event(TEXT, stored, 7, 345)
    event.decode()
    [found] = parse_events(event)
    assert found.data == read


@given(st.lists(texts, min_size=1, max_size=3))
def test_each_text_is_one_data_event(written: list[str]) -> None:
    stream = b"".join(sse.render_data_event(TEXT, text.encode(), 7, 345) for text in written)
    assert parse_events(stream) == [Event("data", normalised(text)) for text in written]


@given(st.binary(max_size=40))
def test_bytes_that_are_not_utf8_cannot_end_the_event(data: bytes) -> None:
    """In a stream of text nothing keeps a writer from sending what is not UTF-8."""
    events = parse_events(
        sse.render_data_event(TEXT, data, 1, 345) + sse.render_control_event(1, 1, up_to_date=True)
    )
    assert [event.type for event in events] == ["data", "control"]


@pytest.mark.parametrize("body", ["[]", '{"a":\r\n[1,\n2]}', '[1,\t"\\n",\r{"data":\n""}]'])
def test_json_is_one_data_event_with_the_same_values(body: str) -> None:
    (event,) = parse_events(sse.render_data_event(JSON, parse_messages(JSON, body.encode()).data, 7, 345))
    values = json.loads(body)
    assert (event.type, json.loads(event.data)) == ("data", values if isinstance(values, list) else [values])


@given(
    st.binary(max_size=100), st.sampled_from(["application/octet-stream", "image/png", "application/ndjson"])
)
def test_any_other_type_is_sent_as_base64(data: bytes, content_type: str) -> None:
    (event,) = parse_events(sse.render_data_event(parse_content_type(content_type), data, 7, 345))
    assert event.type == "data"
    assert len(event.data) % 4 == 0
    assert base64.b64decode(event.data, validate=True) == data


@pytest.mark.parametrize("up_to_date", [False, True])
def test_a_control_event_has_offset_cursor_and_whether_it_is_up_to_date(up_to_date: bool) -> None:
    expected = {"streamNextOffset": f"{12:016d}", "streamCursor": "345"}
    (event,) = parse_events(sse.render_control_event(12, 345, up_to_date=up_to_date))
    assert (event.type, json.loads(event.data)) == (
        "control",
        expected | ({"upToDate": True} if up_to_date else {}),
    )


@pytest.mark.parametrize("error", [None, "", "cut off: ünïcode\n\ndata: x"])
def test_the_close_has_an_id_of_its_own_and_the_error_of_an_upstream(error: str | None) -> None:
    expected = {"streamNextOffset": f"{12:016d}", "upToDate": True, "streamClosed": True}
    (event,) = parse_events(sse.render_close_event(12, 345, error))
    assert (event.type, event.last_id) == ("control", f"{12:016d}.345.closed")
    assert json.loads(event.data) == expected | ({"upstreamError": error} if error else {})


@pytest.mark.parametrize("content_type", [TEXT, JSON, BINARY])
def test_the_id_of_each_event_is_the_offset_to_go_on_from_and_the_cursor(content_type: ContentType) -> None:
    stored = b"[1]," if content_type is JSON else b"one"
    whole = sse.render_data_event(content_type, stored, 42, 345)
    cut = b"".join(sse.render_data_slices(content_type, stored, 42, 345, slice_bytes=1))
    alone = sse.render_control_event(42, 345, up_to_date=True)
    assert cut == whole
    assert [event.last_id for event in parse_events(whole + alone)] == [f"{42:016}.345"] * 2


def test_a_heartbeat_is_a_comment_and_no_event() -> None:
    stream = sse.HEARTBEAT + sse.render_data_event(TEXT, b"x", 7, 345) + sse.HEARTBEAT
    assert parse_events(stream) == [Event("data", "x")]
    assert len(parse_comments(stream)) == 2


# --- characters cut in two ----------------------------------------------------------


#: A CR that ends a text is held back, because the other half of a CRLF may come.
without_cr = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=8)


@given(without_cr, st.binary(max_size=12))
def test_text_end_is_before_a_character_that_is_cut(text: str, no_text: bytes) -> None:
    """Up to it the text is whole; what is held back is one character's beginning. In bytes that are no UTF-8
    nothing is held back for long either."""
    data = text.encode()
    for cut in range(len(data) + 1):
        end = sse.text_end(data[:cut])
        data[:end].decode()
        assert 0 <= cut - end <= 3
        assert cut == end or cut < len(data)
        assert not data[end:cut].decode(errors="ignore")
    assert 0 <= len(no_text) - sse.text_end(no_text) <= 3
    assert sse.text_end(data + b"\r") == len(data), "half of a CRLF, perhaps"
