"""Idempotent producers over HTTP (§5.2.1): their answers. Every rule is in `protocol/test_append.py`."""

from __future__ import annotations

from collections.abc import Callable

from tests.answers import Answer
from tests.http.asgi import Door
from tidemark.protocol.tail import RECENT_PRODUCERS

TEXT = {"Content-Type": "text/plain"}
CLOSE = {"Stream-Closed": "true"}
Make = Callable[..., str]


def claim(epoch: int, seq: int, producer_id: str = "p") -> dict[str, str]:
    return TEXT | {"Producer-Id": producer_id, "Producer-Epoch": str(epoch), "Producer-Seq": str(seq)}


def told(answer: Answer) -> tuple[int, str | None, str | None]:
    return answer.status, answer["producer-epoch"], answer["producer-seq"]


def test_a_duplicate_gets_204_with_the_highest_sequence(door: Door, make_stream: Make) -> None:
    """And the offset of the original append, if it is known."""
    path = make_stream()
    first = door.post(path, claim(0, 0), b"a")
    again = door.post(path, claim(0, 0), b"a")
    assert (told(again), again.next_offset) == ((204, "0", "0"), first.next_offset)
    for seq in (1, 2):
        door.post(path, claim(0, seq), b"a")
    assert told(door.post(path, claim(0, 1), b"different")) == (204, "0", "2")
    assert door.get(path).body == b"aaa"


def test_a_refused_producer_learns_where_it_stands(door: Door, make_stream: Make) -> None:
    path = make_stream()
    door.post(path, claim(0, 0), b"a")
    gap = door.post(path, claim(0, 5), b"b")
    assert (gap.status, gap["producer-expected-seq"], gap["producer-received-seq"]) == (409, "1", "5")
    assert gap["stream-closed"] is None
    assert told(door.post(path, claim(1, 0), b"b")) == (200, "1", "0")
    assert told(door.post(path, claim(0, 1), b"c")) == (403, "1", None)
    assert door.post(path, claim(2, 1), b"d").status == 400
    assert door.get(path).body == b"ab"


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


# --- closing ------------------------------------------------------------------------


def test_a_producer_may_repeat_its_own_close_and_any_other_gets_409(door: Door, make_stream: Make) -> None:
    path = make_stream()
    assert told(door.post(path, claim(0, 0), b"x")) == (200, "0", "0")
    for _ in range(2):
        closed = door.post(path, claim(0, 1) | CLOSE)
        assert (told(closed), closed["Stream-Closed"]) == ((204, "0", "1"), "true")
    for other in (claim(0, 0), claim(0, 2), claim(1, 0), claim(0, 0, "q"), claim(0, 7, "q")):
        refused = door.post(path, CLOSE | other)
        assert (refused.status, refused["Stream-Closed"]) == (409, "true")
        assert refused.next_offset == door.head(path).next_offset
