"""The checker accepts what a service may do, and refuses what none may: a checker that cannot fail is
none."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import pytest

from tests.histories.checker import Undecided, check
from tests.histories.exactly_once import check_exactly_once
from tests.histories.history import (
    Answer,
    Append,
    CountStreams,
    Create,
    CreateBucket,
    Delete,
    DeleteBucket,
    Head,
    Operation,
    Publish,
    Read,
    ReadSnapshot,
    Request,
    Trim,
    partition,
)
from tests.histories.model import START, outcomes
from tests.histories.workload import RETENTION, WEIGHTS, Workload

A, B, C = "v1/a", "v1/b", "v1/c"
CREATED = Answer("created", 0)
DELETED = Answer("deleted")
NOT_FOUND = Answer("StreamNotFound")
TRIMMED = Answer("trimmed")

#: C is a fork of B, which is a fork of A. A and B are deleted, and kept for C.
CHAIN: Final[tuple[tuple[Request, Answer], ...]] = (
    (Create(A), CREATED),
    (Create(B, source=A), CREATED),
    (Create(C, source=B), CREATED),
    (Delete(A), DELETED),
    (Delete(B), DELETED),
)


def appended(tail: int) -> Answer:
    return Answer("appended", tail)


def data(body: bytes, *, closed: bool = False, start: int = 0) -> Answer:
    return Answer("read", start + len(body), closed, body)


def in_turn(*steps: tuple[Request, Answer | None]) -> list[Operation]:
    """Each operation returns before the next one is called; without an answer its outcome is unknown."""
    return [
        Operation(0, request, 2 * index, None if answer is None else 2 * index + 1, answer)
        for index, (request, answer) in enumerate(steps)
    ]


def at_once(*operations: Operation) -> list[Operation]:
    """The same operations, all called before any of them returns."""
    return [
        replace(each, called=0, returned=None if each.returned is None else index + 1)
        for index, each in enumerate(operations)
    ]


X, Y = Append(A, b"x;"), Append(A, b"y;")

RIGHT = {
    "nothing": in_turn(),
    "a stream's life": in_turn(
        (Head(A), NOT_FOUND),
        (Create(A), CREATED),
        (Create(A), Answer("exists", 0)),
        (X, appended(2)),
        (Read(A), data(b"x;")),
        (Read(A, None), data(b"", start=2)),
        (Append(A, close=True), Answer("appended", 2, closed=True)),
        (Append(A, close=True), Answer("already closed", 2, closed=True)),
        (Y, Answer("StreamClosed", 2)),
        (Read(A), data(b"x;", closed=True)),
        (Delete(A), DELETED),
        (Delete(A), NOT_FOUND),
        (Create(A, b"new"), Answer("created", 3)),
    ),
    "a producer": in_turn(
        (Create(A), CREATED),
        (Append(A, b"0;", claim=("p", 0, 0)), appended(2)),
        (Append(A, b"0;", claim=("p", 0, 0)), Answer("duplicate", 2)),
        (Append(A, b"2;", claim=("p", 0, 2)), Answer("SequenceGap", 1)),
        (Append(A, b"1;", claim=("p", 1, 0)), appended(4)),
        (Append(A, b"1;", claim=("p", 0, 1)), Answer("ProducerFenced", 1)),
        (Read(A), data(b"0;1;")),
    ),
    "Stream-Seq": in_turn(
        (Create(A), CREATED),
        (Append(A, b"1", seq="b"), appended(1)),
        (Append(A, b"2", seq="a"), Answer("SequenceRegression")),
        (Append(A, b"3"), appended(2)),
    ),
    "a fork": in_turn(
        (Create(A, b"xyz"), Answer("created", 3)),
        (Create(B, source=A, offset=2, content_type=None), Answer("created", 2)),
        (X, appended(5)),
        (Read(B), data(b"xy")),
        (Delete(A), DELETED),
        (Head(A), Answer("StreamGone")),
        (Create(A), Answer("Conflict")),
        (Read(B), data(b"xy")),
        (Delete(B), DELETED),
        (Head(A), NOT_FOUND),
        (Create(A), CREATED),
    ),
    "a chain of deleted streams, removed one after the other": in_turn(
        *CHAIN, (Delete(C), DELETED), (Head(B), NOT_FOUND), (Head(A), Answer("StreamGone"))
    ),
    "a chain of deleted streams, removed at once": in_turn(
        *CHAIN, (Delete(C), DELETED), (Create(A), CREATED), (Create(B), CREATED)
    ),
    "a snapshot": in_turn(
        (Create(A), CREATED),
        (X, appended(2)),
        (Publish(A, 2, b"folded"), Answer("published")),
        (Read(A), Answer("RetentionGone", 2)),
        (ReadSnapshot(A, 2), Answer("snapshot", data=b"folded")),
        (Publish(A, 0, b"older"), Answer("RetentionGone", 2)),
        (Publish(A, 3, b"newer"), Answer("OffsetBeyondTail", 2)),
    ),
    "a trim": in_turn(
        (Create(A), CREATED),
        (X, appended(2)),
        (Y, appended(4)),
        (Trim(A, 5), Answer("OffsetBeyondTail", 4)),
        (Trim(A, 3), Answer("Malformed")),
        (Trim(A, 2), TRIMMED),
        (Trim(A, 0), Answer("nothing to let go of")),
        (Read(A), Answer("RetentionGone", 2)),
        (Read(A, 2), data(b"y;", start=2)),
        (Create(B, source=A, offset=0), Answer("RetentionGone", 2)),
        (Create(B, source=A, offset=2), Answer("created", 2)),
        (Read(B), Answer("RetentionGone", 2)),
        (Publish(A, 2, b"s"), Answer("published")),
        (Trim(A, 4), Answer("Conflict")),
    ),
    "a stream that keeps two bytes, at which the janitor has looked": in_turn(
        (Create(A, keep_bytes=2), CREATED),
        (X, appended(2)),
        (Y, appended(4)),
        (Read(A), Answer("RetentionGone", 2)),
    ),
    "the same before the janitor looks": in_turn(
        (Create(A, keep_bytes=2), CREATED), (X, appended(2)), (Y, appended(4)), (Read(A), data(b"x;y;"))
    ),
    "a bucket": in_turn(
        (Create("kk/a"), Answer("BucketNotFound")),
        (CreateBucket("kk"), Answer("created")),
        (Create("kk/a"), CREATED),
        (CountStreams("kk"), Answer("bucket", 1)),
        (DeleteBucket("kk"), Answer("BucketNotEmpty")),
        (Delete("kk/a"), DELETED),
        (DeleteBucket("kk"), DELETED),
        (Create("kk/a"), Answer("BucketNotFound")),
    ),
    "appends at once, read in either order": [
        *in_turn((Create(A), CREATED)),
        Operation(1, X, 2, 9, appended(4)),
        Operation(2, Y, 3, 8, appended(2)),
        Operation(3, Read(A), 4, 7, data(b"y;")),
        Operation(3, Read(A), 10, 11, data(b"y;x;")),
    ],
    "of two creations at once one is new": at_once(
        *in_turn((Create(A), CREATED), (Create(A), Answer("exists", 0)))
    ),
    "an append without an answer that landed": in_turn(
        (Create(A), CREATED), (X, None), (Read(A), data(b"x;"))
    ),
    "an append without an answer that never landed": in_turn(
        (Create(A), CREATED), (X, None), (Read(A), data(b""))
    ),
    "an append without an answer that landed late": in_turn(
        (Create(A), CREATED), (X, None), (Read(A), data(b"")), (Y, appended(2)), (Read(A), data(b"y;x;"))
    ),
    "a creation without an answer that landed after a deletion": in_turn(
        (Create(A), CREATED), (Create(A), None), (Delete(A), DELETED), (Head(A), Answer("head", 0))
    ),
    "a deletion without an answer": in_turn((Create(A), CREATED), (Delete(A), None), (Create(A), CREATED)),
    "an expired stream": [
        Operation(0, Create(A, ttl_seconds=100), 1, 2, CREATED, (0,)),
        Operation(0, Head(A), 3, 4, Answer("head", 0), (104_999,)),
        Operation(0, Head(A), 5, 6, NOT_FOUND, (105_000,)),
        Operation(0, Create(A, ttl_seconds=100), 7, 8, CREATED, (105_000,)),
    ],
    "a request that is under way while a stream expires": [
        Operation(0, Create(A, ttl_seconds=100), 1, 2, CREATED, (0,)),
        Operation(0, X, 3, 4, appended(2), (104_999, 105_000)),
        Operation(0, Head(A), 5, 6, Answer("head", 2), (105_001,)),
    ],
}

LIVE = (Create(A), CREATED)
WRONG = {
    "a stale read": in_turn(LIVE, (X, appended(2)), (Read(A), data(b""))),
    "a stale read from the middle": in_turn(
        LIVE, (X, appended(2)), (Y, appended(4)), (Read(A, 2), data(b"", start=2))
    ),
    "a stale HEAD": in_turn(LIVE, (X, appended(2)), (Head(A), Answer("head", 0))),
    "a lost append": in_turn(LIVE, (X, appended(2)), (Y, appended(4)), (Read(A), data(b"y;"))),
    "an append over another one": in_turn(LIVE, (X, appended(2)), (Y, appended(2))),
    "a doubled append": in_turn(LIVE, (X, appended(2)), (Read(A), data(b"x;x;"))),
    "a doubled append without an answer": in_turn(LIVE, (X, None), (Read(A), data(b"x;x;"))),
    "appends in the wrong order": in_turn(LIVE, (X, appended(2)), (Y, appended(4)), (Read(A), data(b"y;x;"))),
    "bytes that nobody sent": in_turn(LIVE, (X, appended(2)), (Read(A), data(b"z;"))),
    "a read that goes back": [
        *in_turn(LIVE),
        Operation(1, X, 2, 20, appended(2)),
        Operation(2, Read(A), 3, 4, data(b"x;")),
        Operation(3, Read(A), 5, 6, data(b"")),
    ],
    "readers who disagree about the order": [
        *in_turn(LIVE),
        Operation(1, X, 2, 20, appended(4)),
        Operation(2, Y, 3, 21, appended(2)),
        Operation(3, Read(A), 4, 5, data(b"x;")),
    ],
    "an append after the end": in_turn(
        LIVE, (Append(A, close=True), Answer("appended", 0, closed=True)), (X, appended(2))
    ),
    "a closed stream that opens again": in_turn(
        LIVE, (Append(A, close=True), Answer("appended", 0, closed=True)), (Head(A), Answer("head", 0))
    ),
    "a duplicate that is written": in_turn(
        LIVE,
        (Append(A, b"x", claim=("p", 0, 0)), appended(1)),
        (Append(A, b"x", claim=("p", 0, 0)), appended(2)),
    ),
    "a gap that is taken": in_turn(LIVE, (Append(A, b"x", claim=("p", 0, 1)), appended(1))),
    "a stale epoch that is taken": in_turn(
        LIVE,
        (Append(A, b"x", claim=("p", 1, 0)), appended(1)),
        (Append(A, b"y", claim=("p", 0, 1)), appended(2)),
    ),
    "a duplicate of nothing": in_turn(LIVE, (Append(A, b"x", claim=("p", 0, 0)), Answer("duplicate", 0))),
    "a sequence that goes back": in_turn(
        LIVE, (Append(A, b"x", seq="2"), appended(1)), (Append(A, b"y", seq="1"), appended(2))
    ),
    "data of the stream before": in_turn(
        LIVE, (X, appended(2)), (Delete(A), DELETED), LIVE, (Read(A), data(b"x;"))
    ),
    "an append to the stream before": in_turn(
        LIVE, (X, appended(2)), (Delete(A), DELETED), LIVE, (Y, appended(4))
    ),
    "a resurrection": in_turn(LIVE, (Delete(A), DELETED), (Head(A), Answer("head", 0))),
    "a resurrection that a PUT meets": in_turn(LIVE, (Delete(A), DELETED), (Create(A), Answer("exists", 0))),
    "two creations that are both new": in_turn(LIVE, LIVE),
    "two creations at once that are both new": at_once(*in_turn(LIVE, LIVE)),
    "one creation, and none was new": in_turn((Create(A), Answer("exists", 0))),
    "one deletion too many": at_once(*in_turn(LIVE, (Delete(A), DELETED), (Delete(A), DELETED))),
    "a creation that got lost": in_turn(LIVE, (Head(A), NOT_FOUND)),
    "an append to nothing": in_turn((X, appended(2))),
    "an unknown outcome that happened before its call": in_turn(LIVE, (Read(A), data(b"x;")), (X, None)),
    "an unknown creation that happened twice": in_turn(
        (Create(A), None), (Delete(A), DELETED), (Delete(A), DELETED)
    ),
    "a fork that sees later data of its source": in_turn(
        LIVE,
        (X, appended(2)),
        (Create(B, source=A, offset=2), Answer("created", 2)),
        (Y, appended(4)),
        (Read(B), data(b"x;y;")),
    ),
    "a fork that loses its source's data": in_turn(
        LIVE,
        (X, appended(2)),
        (Create(B, source=A, offset=2), Answer("created", 2)),
        (Delete(A), DELETED),
        (Read(B), data(b"")),
    ),
    "a source that sees its fork's data": in_turn(
        LIVE,
        (Create(B, source=A), CREATED),
        (Append(B, b"x;"), appended(2)),
        (Read(A), data(b"x;")),
    ),
    "a fork of nothing": in_turn((Create(B, source=A), CREATED)),
    "a name that is free while a fork lives": in_turn(
        LIVE, (Create(B, source=A), CREATED), (Delete(A), DELETED), (Create(A), CREATED)
    ),
    "a name that is not free once the last fork is gone": in_turn(
        LIVE,
        (Create(B, source=A), CREATED),
        (Delete(A), DELETED),
        (Delete(B), DELETED),
        (Head(A), Answer("StreamGone")),
    ),
    "a deleted stream that is gone again after it was not found": in_turn(
        *CHAIN, (Delete(C), DELETED), (Head(A), NOT_FOUND), (Head(A), Answer("StreamGone"))
    ),
    "a creation that is refused once the last fork is gone": in_turn(
        LIVE,
        (Create(B, source=A), CREATED),
        (Delete(A), DELETED),
        (Delete(B), DELETED),
        (Create(A), Answer("Conflict")),
    ),
    "a lost snapshot": in_turn(
        LIVE, (Publish(A, 0, b"s"), Answer("published")), (ReadSnapshot(A, 0), Answer("SnapshotNotFound"))
    ),
    "an older snapshot": in_turn(
        LIVE,
        (Publish(A, 0, b"s"), Answer("published")),
        (Publish(A, 0, b"t"), Answer("published")),
        (ReadSnapshot(A, 0), Answer("snapshot", data=b"s")),
    ),
    "a stream that lets go of what nobody told it to": in_turn(
        LIVE, (X, appended(2)), (Y, appended(4)), (Read(A), Answer("RetentionGone", 2))
    ),
    "a stream that keeps less than it should": in_turn(
        (Create(A, keep_bytes=3), CREATED),
        (X, appended(2)),
        (Y, appended(4)),
        (Read(A), Answer("RetentionGone", 2)),
    ),
    "a trim that takes what is retained": in_turn(
        LIVE, (X, appended(2)), (Y, appended(4)), (Trim(A, 2), TRIMMED), (Read(A, 2), data(b"", start=4))
    ),
    "a trim that goes back": in_turn(
        LIVE,
        (X, appended(2)),
        (Y, appended(4)),
        (Trim(A, 4), TRIMMED),
        (Trim(A, 2), TRIMMED),
    ),
    "a fork that has what its source let go of before": in_turn(
        LIVE,
        (X, appended(2)),
        (Y, appended(4)),
        (Trim(A, 2), TRIMMED),
        (Create(B, source=A, offset=4), Answer("created", 4)),
        (Publish(B, 0, b"s"), Answer("published")),
    ),
    "a bucket that comes back": in_turn(
        (CreateBucket("kk"), Answer("created")),
        (DeleteBucket("kk"), DELETED),
        (CountStreams("kk"), Answer("bucket", 0)),
    ),
    "a bucket that goes with a stream in it": in_turn(
        (CreateBucket("kk"), Answer("created")), (Create("kk/a"), CREATED), (DeleteBucket("kk"), DELETED)
    ),
    "a wrong count": in_turn(
        (CreateBucket("kk"), Answer("created")), (CountStreams("kk"), Answer("bucket", 1))
    ),
    "a stream that expires early": [
        Operation(0, Create(A, ttl_seconds=100), 1, 2, CREATED, (0,)),
        Operation(0, Head(A), 3, 4, NOT_FOUND, (104_999,)),
    ],
    "a stream that outlives its time": [
        Operation(0, Create(A, ttl_seconds=100), 1, 2, CREATED, (0,)),
        Operation(0, Head(A), 3, 4, Answer("head", 0), (105_000,)),
    ],
    "a write that does not renew": [
        Operation(0, Create(A, ttl_seconds=100), 1, 2, CREATED, (0,)),
        Operation(0, X, 3, 4, appended(2), (100_000,)),
        Operation(0, Head(A), 5, 6, NOT_FOUND, (200_000,)),
    ],
}


@pytest.mark.parametrize("history", RIGHT.values(), ids=RIGHT)
def test_what_a_service_may_do_is_accepted(history: list[Operation]) -> None:
    violation = check(history)
    assert violation is None, str(violation)


@pytest.mark.parametrize("history", WRONG.values(), ids=WRONG)
def test_what_no_service_may_do_is_refused(history: list[Operation]) -> None:
    violation = check(history)
    assert violation is not None
    assert "Not linearizable" in str(violation)


def test_a_search_that_takes_too_long_is_no_success() -> None:
    with pytest.raises(Undecided):
        check(RIGHT["a stream's life"], max_steps=3)


def test_streams_are_checked_apart_unless_a_fork_or_a_bucket_ties_them() -> None:
    """A smaller search says the same; parts that belong together must not be torn apart."""
    apart = in_turn((Create(A), CREATED), (Create(B), CREATED), (Head(A), NOT_FOUND))
    assert [len(part) for part in partition(apart)] == [2, 1]
    forked = [*apart, *in_turn((Create("v1/c", source=A), CREATED), (Create(B, source="v1/c"), CREATED))]
    assert [len(part) for part in partition(forked)] == [5]
    in_bucket = in_turn((CreateBucket("kk"), CREATED), (Create("kk/a"), CREATED), (Create("kk/b"), CREATED))
    assert [len(part) for part in partition(in_bucket)] == [3]


# --- mutations of histories that are right -------------------------------------------


def history_of_a_right_service(seed: int, kind: str, unknown: float = 0.05) -> list[Operation]:
    """Three clients on the model itself: each operation takes effect at one moment between its call and its
    return. At the end every stream is read."""
    chance = random.Random(seed)
    workload = Workload(chance, kind, names=2)
    state, place, history = START, 0, []
    for index in range(40):
        client = index % 3
        request = workload.next(client) if index > 3 else [*workload.first(), Create(A)][0]
        answer, state = next(iter(outcomes(state, request)))
        place += 3
        # Called up to two operations earlier, returned up to two operations later.
        operation = Operation(
            client, request, place - chance.choice((1, 4, 7)), place + chance.choice((1, 5, 8)), answer
        )
        if chance.random() < unknown:
            operation = replace(operation, answer=None, returned=None)
        workload.learn(client, request, operation.answer)
        history.append(operation)
    for name in workload.names:
        place += 20
        [(answer, _), *_] = outcomes(state, Read(name))
        history.append(Operation(9, Read(name), place, place + 1, answer))
    return history


SEEDS = range(12)


@pytest.mark.parametrize("kind", [*WEIGHTS, RETENTION])
@pytest.mark.parametrize("seed", SEEDS)
def test_histories_of_a_right_service_are_accepted(seed: int, kind: str) -> None:
    violation = check(history_of_a_right_service(seed, kind))
    assert violation is None, str(violation)


def messages_of(read: Operation) -> list[bytes]:
    assert read.answer is not None
    return [message + b";" for message in (read.answer.data or b"").split(b";")[:-1]]


def with_messages(read: Operation, messages: list[bytes]) -> Operation:
    """The read as if it had found these, with the tail that fits to them."""
    assert read.answer is not None
    body = b"".join(messages)
    assert read.answer.data is not None
    assert read.answer.offset is not None
    tail = read.answer.offset - len(read.answer.data) + len(body)
    return replace(read, answer=replace(read.answer, data=body, offset=tail))


READ_MUTATIONS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "drop the first": lambda messages: messages[1:],
    "drop the last": lambda messages: messages[:-1],
    "drop one in the middle": lambda messages: messages[:1] + messages[2:],
    "swap two": lambda messages: [messages[1], messages[0], *messages[2:]],
    "repeat the last": lambda messages: [*messages, messages[-1]],
    "repeat the first": lambda messages: [messages[0], *messages],
    "invent one": lambda messages: [*messages, b"nobody sent this;"],
    "alter one": lambda messages: [messages[0][:-1] + b"!;", *messages[1:]],
}


def final_reads(kind: str) -> Iterator[tuple[list[Operation], Operation]]:
    """Histories in which all outcomes are known, each with a last read of several messages."""
    for seed in SEEDS:
        history = history_of_a_right_service(seed, kind, unknown=0)
        for read in history[-2:]:
            if read.answer is not None and read.answer.outcome == "read" and len(messages_of(read)) > 2:
                yield history, read


@pytest.mark.parametrize("kind", ["plain", "forks", "buckets"])
@pytest.mark.parametrize("mutation", READ_MUTATIONS.values(), ids=READ_MUTATIONS)
def test_a_mutated_read_is_caught(mutation: Callable[[list[bytes]], list[bytes]], kind: str) -> None:
    """The last read of a stream, after everything has returned: whatever is changed in it is wrong."""
    caught = 0
    for history, read in final_reads(kind):
        mutated = with_messages(read, mutation(messages_of(read)))
        changed = [mutated if each is read else each for each in history]
        assert check(changed) is not None, f"{mutated} passes in {history}"
        caught += 1
    assert caught >= 2, "too few histories end with a stream of several messages"


def test_a_mutated_answer_is_caught() -> None:
    """One answer of a history without overlaps, turned into another one: an offset moved, new for old,
    known for unknown. What the model says is then the only right answer."""
    state, history = START, []
    workload = Workload(random.Random(5), "plain", names=2)
    for index in range(60):
        request = workload.next(index % 3) if index > 1 else Create((A, B)[index])
        answer, state = next(iter(outcomes(state, request)))
        workload.learn(index % 3, request, answer)
        history.append(Operation(index % 3, request, 2 * index, 2 * index + 1, answer))
    assert check(history) is None
    other = {"created": "exists", "exists": "created", "appended": "duplicate", "deleted": "StreamNotFound"}
    mutated = 0
    for index, operation in enumerate(history):
        assert operation.answer is not None
        answers = [replace(operation.answer, outcome=other.get(operation.answer.outcome, "deleted"))]
        if operation.answer.offset is not None:
            answers.append(replace(operation.answer, offset=operation.answer.offset + 1))
        for answer in answers:
            changed = [*history[:index], replace(operation, answer=answer), *history[index + 1 :]]
            assert check(changed) is not None, f"{operation} as {answer}"
            mutated += 1
    assert mutated > 60


# --- the check that needs no search --------------------------------------------------


def test_the_plain_check_finds_what_is_lost_or_doubled() -> None:
    lost = in_turn(LIVE, (X, appended(2)), (Y, appended(4)), (Read(A), data(b"y;")))
    doubled = in_turn(LIVE, (X, None), (Read(A), data(b"x;x;")))
    assert len(check_exactly_once(lost)) == 1
    assert len(check_exactly_once(doubled)) == 1


@pytest.mark.parametrize("name", [name for name in RIGHT if "fork" not in name])
def test_the_plain_check_accepts_what_is_right(name: str) -> None:
    assert check_exactly_once(RIGHT[name]) == []
