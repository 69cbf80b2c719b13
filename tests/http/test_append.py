"""Appending (§5.2) and closing (§4.1, §5.3)."""

import pytest

from tests.answers import Answer
from tests.http.asgi import CLOSE, JSON, TEXT, Door, Make

pytestmark = pytest.mark.each_way


def check_closed(answer: Answer, next_offset: str) -> None:
    """§5.2: the headers report the close and the end."""
    assert answer.status == 409
    assert answer["stream-closed"] == "true"
    assert answer.next_offset == next_offset


def test_a_chunked_body_is_one_append(door: Door, make_stream: Make) -> None:
    path = make_stream()
    pieces = [b"a", b"", b"\xe2", b"\x82\xac", b"b" * 100_000, b"c"]
    answer = door("POST", path, TEXT, pieces)
    assert answer.status == 204
    assert door.get(path).body == b"".join(pieces)


# --- closing ------------------------------------------------------------------------


def test_a_closed_stream_gets_409_before_any_other_check(door: Door, make_stream: Make) -> None:
    """Otherwise the client would correct its body and send it again in vain. Every other check is in
    `protocol/test_append.py`."""
    path = make_stream(body=b"data")
    door.post(path, CLOSE | {"Stream-Seq": "5"})
    gap = TEXT | {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "7"}
    wrong = ((JSON, b"{"), (JSON | {"Stream-Seq": "1"}, b"1"), (JSON | CLOSE, b"1"))
    for headers, body in (*wrong, (gap, b"x"), (TEXT, b""), ({}, b"no type")):
        check_closed(door.post(path, headers, body), "0000000000000004")
    door.put(f"{path}/json", JSON | CLOSE)
    for body in (b"{", b"[]", b'"\xff"'):
        check_closed(door.post(f"{path}/json", JSON, body), "0000000000000000")
