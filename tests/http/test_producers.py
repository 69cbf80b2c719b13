"""Idempotent producers over HTTP (§5.2.1), where there are many. Every rule is in `protocol/test_append.py`,
and every answer in the official suite."""

from __future__ import annotations

from tests.answers import Answer
from tests.http.asgi import TEXT, Door, Make
from tidemark.protocol.tail import RECENT_PRODUCERS


def claim(epoch: int, seq: int, producer_id: str = "p") -> dict[str, str]:
    return TEXT | {"Producer-Id": producer_id, "Producer-Epoch": str(epoch), "Producer-Seq": str(seq)}


def told(answer: Answer) -> tuple[int, str | None, str | None]:
    return answer.status, answer["producer-epoch"], answer["producer-seq"]


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
