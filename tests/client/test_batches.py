"""The idempotent producer's rules, without I/O: exactly once, in order, whatever is lost or overtakes."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.client import errors
from tidemark.client.batches import Batches, ProducerBatch, ProducerLimits
from tidemark.client.core import Protocol
from tidemark.client.exchange import Lost, Reply, Request, Retry

LOST = Lost("ReadError")
RETRY = Retry(max_retries=3)


def batches(content_type: str = "text/plain", epoch: int | None = None, **limits: Any) -> Batches:
    chosen = ProducerLimits(**{"linger_seconds": 0.0} | limits)
    return Batches(Protocol("http://server/s", content_type, RETRY), "p", 1000, epoch, chosen)


def taken(made: Batches, now: float = 0.0) -> ProducerBatch:
    batch = made.take(now)
    assert batch is not None
    return batch


@dataclass
class Server:
    """One stream and the state of its producers, as section 5.2.1 says."""

    messages: list[str] = field(default_factory=list)
    epoch: int = -1
    seq: int = -1
    closed: bool = False
    closed_by: tuple[int, int] | None = None

    def answer(self, request: Request) -> Reply:
        epoch, seq = int(request.headers["Producer-Epoch"]), int(request.headers["Producer-Seq"])
        told = {"stream-next-offset": str(len(self.messages))}
        if self.closed:
            same = (epoch, seq) == self.closed_by
            return Reply(204 if same else 409, told | {"stream-closed": "true"})
        if epoch < self.epoch:
            return Reply(403, {"producer-epoch": str(self.epoch)})
        last = self.seq if epoch == self.epoch else -1
        if seq <= last:
            return Reply(204, told | {"producer-seq": str(last)})
        if seq > last + 1:
            return Reply(409, {"producer-expected-seq": str(last + 1), "producer-received-seq": str(seq)})
        self.epoch, self.seq = epoch, seq
        self.messages += json.loads(request.body) if request.body else []
        if request.headers.get("Stream-Closed"):
            self.closed, self.closed_by = True, (epoch, seq)
        return Reply(200, {"stream-next-offset": str(len(self.messages)), "producer-seq": str(seq)})


@settings(max_examples=500)
@given(st.integers(0, 2**32))
def test_every_message_is_written_once_and_in_order_whatever_happens(seed: int) -> None:
    chance = random.Random(seed)
    server = Server(epoch=chance.choice([-1, 0, 5000]), seq=3)
    in_flight = chance.randint(1, 4)
    made = batches("application/json", max_in_flight=in_flight, max_batch_messages=3)
    on_the_way: list[tuple[ProducerBatch, Request]] = []
    to_add, now, faults = [f"message {number}" for number in range(12)], 0.0, 3 if server.epoch == 5000 else 0
    while not made.is_closed:
        now += chance.choice([0.0, 0.1, 20.0])
        if to_add and chance.random() < 0.5:
            made.add(json.dumps(to_add.pop(0)).encode(), now)
            if not to_add:
                made.close()
        while (batch := made.take(now)) is not None:
            on_the_way.append((batch, made.request(batch)))
        assert len(on_the_way) <= in_flight
        if not on_the_way:
            continue
        batch, request = on_the_way.pop(chance.randrange(len(on_the_way)))
        kinds = ["whole", "lost before", "lost after", "busy"] if faults < 3 else ["whole"]
        kind = chance.choice(kinds)
        faults += kind != "whole"
        reply: Reply | Lost = Reply(429, {"retry-after": "1"}) if kind == "busy" else LOST
        if kind in {"whole", "lost after"}:
            answer = server.answer(request)
            reply = answer if kind == "whole" else LOST
        made.answered(batch, reply, now)
        assert made.failure is None
        written = len(server.messages)
        assert made.acknowledged <= written, "nothing is acknowledged that is not written"
    assert server.messages == [f"message {number}" for number in range(12)]
    assert server.closed
    assert made.acknowledged == 12


def test_a_batch_is_sent_after_its_time_or_when_it_is_whole() -> None:
    made = batches(linger_seconds=0.5, max_batch_bytes=4, max_batch_messages=3)
    assert made.add(b"a", 1.0)
    assert not made.add(b"b", 1.1)
    assert (made.take(1.4), made.next_at()) == (None, 1.5)
    first = taken(made, 1.5)
    assert first.body == b"ab"
    made.answered(first, Reply(200, {"stream-next-offset": "2"}), 1.6)
    assert [made.add(message, 2.0) for message in (b"c", b"", b"d", b"efg")] == [True, False, False, True]
    assert taken(made, 2.0).body == b"cd"
    assert made.take(2.0) is None, "what is left is less than a batch"
    made.hurry()
    assert taken(made, 2.0).body == b"efg"


def test_a_producer_whose_requests_overtake_each_other_sends_one_at_a_time_for_a_while() -> None:
    server, made = Server(), batches("application/json", epoch=0, max_in_flight=3, max_batch_messages=1)
    for number in range(300):
        made.add(b"%d" % number, 0.0)
    statuses = list[int]()
    while made.unwritten:
        for batch in reversed(list(iter(lambda: made.take(0.0), None))):  # The latest arrives first.
            reply = server.answer(made.request(batch))
            statuses.append(reply.status)
            made.answered(batch, reply, 0.0)
    assert server.messages == [*range(300)]
    assert statuses[:3] == [409, 409, 200]
    assert statuses.count(409) == 2 + 2, "once more two at a time, after a hundred"


def test_json_messages_become_one_array_each_a_message() -> None:
    made = batches("application/json")
    for value in ([1, 2], "a", b'{"b": 1}'):
        made.add(made.encode(value), 0.0)
    assert taken(made).body == b'[[1,2],"a",{"b": 1}]'


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"no JSON", "must be one JSON value: Invalid JSON: .* at byte 1"),
        (b'{"a":1},{"b":2}', "must be one JSON value: .* at byte 8"),
        (bytearray(b""), "must be one JSON value"),
        (b'"\xff"', "must be one JSON value: .*UTF-8"),
        (float("nan"), "not JSON compliant"),
        (10**400, "must be one JSON value: .*beyond the range of a double"),
        (b"[" * 501 + b"]" * 501, "must be one JSON value: .*500 levels"),
        ("x" * (4 * 1024 * 1024 - 3), "has 4,194,303 bytes; a request takes at most 4,194,304"),
    ],
    ids=["no JSON", "two values", "nothing", "no UTF-8", "NaN", "large number", "deep", "large"],
)
def test_a_message_that_the_server_would_refuse_takes_no_other_with_it(data: Any, why: str) -> None:
    made = batches("application/json")
    made.add(made.encode(1), 0.0)
    with pytest.raises(ValueError, match=why):
        made.encode(data)
    made.add(made.encode(b" 2 "), 0.0)
    assert taken(made).body == b"[1,2]"


@pytest.mark.parametrize("content_type", ["text/plain", "application/json"])
def test_a_batch_fits_a_request_with_its_commas_and_brackets(content_type: str) -> None:
    made = batches(content_type, epoch=0, max_request_bytes=10, max_in_flight=9)
    made.add(made.encode(b"12345678" if content_type.endswith("json") else b"1234567890"), 0.0)
    for _ in range(9):
        made.add(made.encode(b"123"), 0.0)
    made.hurry()
    bodies = [batch.body for batch in iter(lambda: made.take(0.0), None)]
    assert max(map(len, bodies)) == 10
    assert b"".join(bodies).count(b"123") == 10


def test_only_one_batch_is_on_its_way_until_the_epoch_is_claimed() -> None:
    made = batches(max_batch_messages=1)
    for message in (b"a", b"b", b"c"):
        made.add(message, 0.0)
    first = taken(made)
    assert made.take(0.0) is None
    made.answered(first, Reply(403, {"producer-epoch": "7000"}), 0.0)
    assert taken(made) is first
    assert made.request(first).headers["Producer-Epoch"] == "7001"
    made.answered(first, Reply(200, {"stream-next-offset": "1"}), 0.0)
    assert (taken(made).body, taken(made).body) == (b"b", b"c")


def test_only_the_first_batch_creates_the_stream_and_is_alone() -> None:
    made = Batches(Protocol("http://s/s", "text/plain", RETRY), "p", 0, 3, ProducerLimits(0.0), create=True)
    made.add(b"a", 0.0)
    first = taken(made)
    assert made.request(first).headers["Stream-Create"] == "text/plain"
    made.add(b"b", 0.0)
    assert made.take(0.0) is None, "it would find no stream"
    made.answered(first, LOST, 0.0)
    assert "Stream-Create" in made.request(taken(made, 9.0)).headers
    made.answered(first, Reply(204, {"producer-seq": "0"}), 9.0)
    assert "Stream-Create" not in made.request(taken(made, 9.0)).headers


def test_a_first_batch_that_may_be_written_is_not_sent_again_in_another_epoch() -> None:
    made = batches()
    made.add(b"a", 0.0)
    for reply in (LOST, Reply(429, {}), Reply(403, {"producer-epoch": "7000"})):
        made.answered(taken(made, 9.0), reply, 0.0)
    with pytest.raises(errors.ProducerFenced):
        made.check()


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply(403, {"producer-epoch": "9"}), errors.ProducerFenced),
        (Reply(409, {"stream-closed": "true"}), errors.StreamClosed),
        (Reply(409, {"producer-expected-seq": "0"}), errors.OutOfOrderSequence),
        (Reply(200, {"content-type": "text/html"}), errors.MalformedReply),
        (Reply(404, {}), errors.NotFound),
        (Reply(410, {}), errors.StreamGone),
        (Reply(400, {}), errors.InvalidRequest),
        (Reply(501, {}), errors.Unavailable),
    ],
)
def test_what_cannot_be_mended_is_raised_by_the_next_append(reply: Reply, expected: type[Exception]) -> None:
    """In an epoch that was given: a claiming producer would go above the one that it meets."""
    made = batches(epoch=3)
    made.add(b"a", 0.0)
    made.answered(taken(made), reply, 0.0)
    with pytest.raises(expected) as raised:
        made.add(b"b", 0.0)
    assert raised.value.__notes__ == ["Message 1 of this producer is the first one in that request."]
    assert (made.take(0.0), made.next_at(), made.acknowledged) == (None, None, 0)


def test_a_close_whose_answer_was_lost_may_find_the_stream_closed_by_itself() -> None:
    """Not every server knows that it was this request. That another has closed the stream is an error."""
    closed = Reply(409, {"stream-closed": "true", "stream-next-offset": "7"})
    made, stopped = batches(), batches()
    made.close()
    closing = taken(made)
    assert made.request(closing).headers["Stream-Closed"] == "true"
    assert "Content-Type" not in made.request(closing).headers
    made.answered(closing, LOST, 0.0)
    made.answered(taken(made, 9.0), closed, 9.0)
    assert made.is_closed
    assert made.result is not None
    assert made.result.offset == "7"
    stopped.close()
    stopped.answered(taken(stopped), closed, 0.0)
    with pytest.raises(errors.StreamClosed):
        stopped.check()


def with_two_batches_on_their_way() -> tuple[Server, Batches, ProducerBatch, ProducerBatch]:
    """The second one closes the stream."""
    server, made = Server(), batches("application/json", max_batch_messages=1)
    made.add(b'"claims"', 0.0)
    first = taken(made)
    made.answered(first, server.answer(made.request(first)), 0.0)
    for message in (b'"lost"', b'"last"'):
        made.add(message, 0.0)
    made.close()
    return server, made, taken(made), taken(made)


@pytest.mark.parametrize("unknown", [LOST, Reply(503, {}, b'{"outcome": "unknown"}')])
@pytest.mark.parametrize("answer_first", [False, True])
def test_a_lost_batch_may_find_its_stream_closed(unknown: Reply | Lost, *, answer_first: bool) -> None:
    """A closed stream does not say that it has the batch; the answer to the close says so."""
    server, made, lost, last = with_two_batches_on_their_way()
    server.answer(made.request(lost))
    answer = server.answer(made.request(last))
    made.answered(lost, unknown, 0.0)
    if answer_first:
        made.answered(last, answer, 0.0)
    else:
        again = taken(made, 20.0)
        assert again is lost
        refused = server.answer(made.request(again))
        assert refused.status == 409
        made.answered(again, refused, 20.0)
        made.answered(last, answer, 20.0)
    made.check()
    assert made.is_closed
    assert (made.acknowledged, server.messages) == (3, ["claims", "lost", "last"])


def test_a_late_copy_of_the_last_batch_may_have_closed_the_stream() -> None:
    """The network delivers it again after it was refused, because it had overtaken the batch before it. Both
    are asked until one tells."""
    server, made, lost, last = with_two_batches_on_their_way()
    overtook = server.answer(made.request(last))
    assert "producer-expected-seq" in overtook.headers
    made.answered(last, overtook, 0.0)
    server.answer(made.request(lost))
    made.answered(lost, LOST, 0.0)
    server.answer(made.request(last))
    for moment in (20.0, 20.1):
        batch = taken(made, moment)
        made.answered(batch, server.answer(made.request(batch)), moment)
    made.check()
    assert made.is_closed
    assert (made.acknowledged, server.messages) == (3, ["claims", "lost", "last"])


def test_a_stream_that_another_closed_does_not_have_a_batch_whose_answer_was_lost() -> None:
    """Though the close of the producer's own, which was lost too, would be as good."""
    made, closed = batches(epoch=3), Reply(409, {"stream-closed": "true"})
    made.add(b"lost", 0.0)
    on_the_way = [taken(made)]
    made.close()
    for batch in [*on_the_way, taken(made)]:
        made.answered(batch, LOST, 0.0)
    for moment in (20.0, 20.1):
        made.answered(taken(made, moment), closed, moment)
    with pytest.raises(errors.StreamClosed):
        made.check()
    assert (made.acknowledged, made.unwritten) == (0, 1)


def test_a_duplicate_is_a_success_in_an_epoch_that_was_given_and_anothers_in_one_that_was_claimed() -> None:
    """An epoch is given to repeat an earlier run's batches. It may be claimed anew."""
    for epoch, refusals in ((3, 0), (None, 0), (None, 1)):
        made = batches(epoch=epoch)
        made.add(b"a", 0.0)
        for _ in range(refusals):
            made.answered(taken(made), Reply(403, {"producer-epoch": "7000"}), 0.0)
        made.answered(taken(made), Reply(204, {"producer-seq": "5"}), 0.0)
        if epoch is None:
            with pytest.raises(errors.ProducerFenced, match="another producer has used"):
                made.check()
        else:
            assert made.acknowledged == 1


@pytest.mark.parametrize("lost_at", [[1.0] * 3, [1000.0]])
def test_retries_end_and_wait_as_long_as_the_server_asks(lost_at: list[float]) -> None:
    """After so many, or so much time."""
    made = batches(epoch=3)
    made.add(b"a", 0.0)
    batch = taken(made)
    made.answered(batch, Reply(429, {"retry-after": "9"}), 1.0)
    made.add(b"b", 1.0)
    assert made.take(9.9) is None
    assert 10 <= (made.next_at() or 0) <= 1 + 9 * 1.25
    for now in lost_at:
        made.answered(taken(made, 1000.0), LOST, now)
    with pytest.raises(errors.UnconfirmedWrite):
        made.check()


def test_nothing_is_taken_after_a_close_or_a_detach() -> None:
    closed, detached = batches(), batches()
    closed.close()
    detached.detach()
    for made, said in ((closed, "closed"), (detached, "detached")):
        with pytest.raises(ValueError, match=said):
            made.add(b"a", 0.0)


def test_what_is_held_is_bounded_until_it_is_acknowledged() -> None:
    made = batches(max_held_bytes=4)
    made.add(b"abcd", 0.0)
    assert made.is_full
    batch = taken(made)
    assert made.is_full
    made.answered(batch, Reply(200, {"stream-next-offset": "4"}), 0.0)
    assert not made.is_full


def test_a_message_that_waits_counts_with_the_memory_that_it_takes() -> None:
    """Of tokens of four bytes most is Python's: the bound would be passed sixteen times."""
    made, held = batches(max_held_bytes=1_000_000, linger_seconds=60, max_batch_messages=10**6), 0
    while not made.is_full:
        made.add(b"%04d" % (held % 10_000), 0.0)
        held += 1
    assert 1_000_000 / 100 < held < 1_000_000 / 60
    made.hurry()
    taken(made)
    assert not made.is_full, "in a batch they are one object"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"epoch": -1}, "epoch"),
        ({"epoch": 2**53}, "epoch"),
        ({"linger_seconds": -1}, "linger_seconds"),
        ({"linger_seconds": float("inf")}, "linger_seconds"),
        ({"max_batch_bytes": 0}, "max_batch_bytes"),
        ({"max_batch_messages": -1}, "max_batch_messages"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"max_held_bytes": 0}, "max_held_bytes"),
        ({"max_request_bytes": 0}, "max_request_bytes"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        batches(**options)
    with pytest.raises(ValueError, match="producer_id"):
        Batches(Protocol("http://s/s", "", RETRY), "", 0, 0, ProducerLimits())


def test_a_producer_that_failed_keeps_no_message_and_no_frame() -> None:
    """An append after that raises the failure, whose frames would have the messages of all such appends."""
    made = batches(max_batch_messages=1)
    for _ in range(3):
        made.add(b"x" * 1000, 0.0)
    sent = taken(made)
    try:
        raise LookupError("no token")
    except LookupError as why:
        made.fail(why)
    assert (made.unwritten, made.acknowledged, made.take(0.0)) == (3, 0, None)
    assert sent.body == b"x" * 1000, "its request may not be made yet"
    assert sum(map(len, [*made._waiting, *(batch.body for batch in made._unanswered)])) == 0
    for _ in range(3):
        with pytest.raises(LookupError) as raised:
            made.check()
        assert len(raised.traceback) == 2
        assert "raise LookupError" in raised.value.__notes__[0]
