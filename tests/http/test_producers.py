"""Idempotent producers over HTTP (§5.2.1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.http.asgi import Answer, Door
from tidemark.protocol.tail import RECENT_PRODUCERS

TEXT = {"Content-Type": "text/plain"}
CLOSE = {"Stream-Closed": "true"}
Make = Callable[..., str]


def claim(epoch: int, seq: int, producer_id: str = "p") -> dict[str, str]:
    return TEXT | {"Producer-Id": producer_id, "Producer-Epoch": str(epoch), "Producer-Seq": str(seq)}


def told(answer: Answer) -> tuple[int, str | None, str | None]:
    return answer.status, answer["producer-epoch"], answer["producer-seq"]


def test_a_producers_first_append_gets_200(door: Door, make_stream: Make) -> None:
    path = make_stream()
    answer = door.post(path, claim(0, 0), b"a")
    assert told(answer) == (200, "0", "0")
    assert answer.next_offset == "0000000000000001"
    assert answer.body == b""
    assert told(door.post(path, claim(0, 1), b"b")) == (200, "0", "1")
    assert door.get(path).body == b"ab"


def test_a_duplicate_gets_204_with_the_highest_sequence(door: Door, make_stream: Make) -> None:
    """And the offset of the original append, if it is known."""
    path = make_stream()
    first = door.post(path, claim(0, 0), b"a")
    again = door.post(path, claim(0, 0), b"a")
    assert told(again) == (204, "0", "0")
    assert again.next_offset == first.next_offset
    for seq in (1, 2, 3):
        door.post(path, claim(0, seq), b"a")
    assert told(door.post(path, claim(0, 1), b"different")) == (204, "0", "3")
    assert door.get(path).body == b"aaaa"


def test_a_stale_epoch_gets_403_and_the_current_epoch(door: Door, make_stream: Make) -> None:
    path = make_stream()
    door.post(path, claim(0, 0), b"a")
    assert told(door.post(path, claim(1, 0), b"b")) == (200, "1", "0")
    zombie = door.post(path, claim(0, 1), b"c")
    assert told(zombie) == (403, "1", None)
    assert door.post(path, claim(2, 1), b"d").status == 400
    assert told(door.post(path, claim(7, 0), b"e")) == (200, "7", "0")
    assert door.get(path).body == b"abe"


def test_a_sequence_gap_gets_409_with_the_expected_sequence(door: Door, make_stream: Make) -> None:
    path = make_stream()
    door.post(path, claim(0, 0), b"a")
    answer = door.post(path, claim(0, 5), b"b")
    assert answer.status == 409
    assert (answer["producer-expected-seq"], answer["producer-received-seq"]) == ("1", "5")
    assert answer["stream-closed"] is None
    fresh = door.post(path, claim(0, 1, "q"), b"b")
    assert (fresh["producer-expected-seq"], fresh["producer-received-seq"]) == ("0", "1")


def test_the_largest_epoch_and_sequence_are_accepted(door: Door, make_stream: Make) -> None:
    path = make_stream()
    largest = 2**53 - 1
    assert told(door.post(path, claim(largest, 0), b"a")) == (200, str(largest), "0")
    answer = door.post(path, claim(largest, largest), b"b")
    assert (answer["producer-expected-seq"], answer["producer-received-seq"]) == ("1", str(largest))


def test_producers_of_one_stream_are_independent(door: Door, make_stream: Make) -> None:
    path = make_stream()
    for producer_id in ("p", "P", "p ".strip() + "2", "a b", "x" * 256):
        assert told(door.post(path, claim(0, 0, producer_id), b"a")) == (200, "0", "0")


def test_a_stream_recognises_duplicates_of_more_producers_than_a_batch_carries(
    door: Door, make_stream: Make
) -> None:
    """Each producer is still known after all others have appended."""
    path = make_stream()
    crowd = [f"p{n}" for n in range(3 * RECENT_PRODUCERS)]
    for seq in (0, 1):
        for producer_id in crowd:
            assert told(door.post(path, claim(0, seq, producer_id), b"x")) == (200, "0", str(seq))
    for producer_id in crowd:
        assert told(door.post(path, claim(0, 1, producer_id), b"y")) == (204, "0", "1")
        assert door.post(path, claim(0, 3, producer_id), b"y").status == 409
    assert door.get(path).body == b"x" * 2 * len(crowd)


def test_a_duplicate_is_recognised_before_its_stream_seq_is_checked(door: Door, make_stream: Make) -> None:
    """Its Stream-Seq has not increased, and would be refused."""
    path = make_stream()
    headers = claim(0, 0) | {"Stream-Seq": "1"}
    assert door.post(path, headers, b"a").status == 200
    assert door.post(path, headers, b"a").status == 204


def test_a_refused_append_does_not_advance_the_producer(door: Door, make_stream: Make) -> None:
    path = make_stream()
    door.post(path, TEXT | {"Stream-Seq": "5"}, b"a")
    assert door.post(path, claim(0, 0) | {"Stream-Seq": "1"}, b"b").status == 409
    assert door.post(path, claim(0, 0) | {"Content-Type": "text/html"}, b"b").status == 409
    assert door.post(path, claim(0, 0) | {"Stream-Seq": "6"}, b"b").status == 200


# --- closing ------------------------------------------------------------------------


def test_append_and_close_is_idempotent(door: Door, make_stream: Make) -> None:
    path = make_stream()
    first = door.post(path, claim(0, 0) | CLOSE, b"last")
    assert told(first) == (200, "0", "0")
    assert first["stream-closed"] == "true"
    again = door.post(path, claim(0, 0) | CLOSE, b"another body")
    assert told(again) == (204, "0", "0")
    assert (again["stream-closed"], again.next_offset) == ("true", first.next_offset)
    assert door.get(path).body == b"last"


def test_a_close_without_a_body_is_idempotent(door: Door, make_stream: Make) -> None:
    path = make_stream()
    door.post(path, claim(0, 0), b"a")
    for _ in range(2):
        answer = door.post(path, claim(0, 1) | CLOSE)
        assert told(answer) == (204, "0", "1")
        assert answer["stream-closed"] == "true"


@pytest.mark.parametrize(
    "headers",
    [
        claim(0, 1) | CLOSE,
        claim(0, 2),
        claim(0, 2) | CLOSE,
        claim(1, 0),
        claim(0, 0, "q") | CLOSE,
        claim(0, 0),
    ],
    ids=["earlier", "next", "next, closing", "new epoch", "another producer", "duplicate of data"],
)
@pytest.mark.parametrize("body", [b"x", b""], ids=["body", "no body"])
def test_after_a_close_only_the_request_that_closed_succeeds(
    door: Door, make_stream: Make, headers: dict[str, str], body: bytes
) -> None:
    """Only the tuple that closed the stream is answered with success."""
    path = make_stream()
    door.post(path, claim(0, 0), b"a")
    closing = door.post(path, claim(0, 1) | CLOSE, b"b")
    answer = door.post(path, headers, body)
    if not body and "Stream-Closed" not in headers:
        assert answer.status == 400, "an empty append is malformed, whatever the stream's state"
        return
    if headers == claim(0, 1) | CLOSE:
        assert told(answer) == (204, "0", "1")
    else:
        assert answer.status == 409
    assert (answer["stream-closed"], answer.next_offset) == ("true", closing.next_offset)


def test_a_close_with_the_sequence_of_an_earlier_append_does_not_close(door: Door, make_stream: Make) -> None:
    """The sequence number is used up: the request is a duplicate of the append."""
    path = make_stream()
    door.post(path, claim(0, 0), b"a")
    answer = door.post(path, claim(0, 0) | CLOSE)
    assert told(answer) == (204, "0", "0")
    assert answer["stream-closed"] is None
    assert door.head(path)["stream-closed"] is None
