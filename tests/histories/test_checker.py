"""The checker refuses what no service may do: a checker that cannot fail is none. That it accepts what a
service may do is shown by all that is recorded and simulated."""

from collections.abc import Iterator
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

A, B, C = "v1/a", "v1/b", "v1/c"
CREATED = Answer("created", 0)
DELETED = Answer("deleted")
NOT_FOUND = Answer("StreamNotFound")
TRIMMED = Answer("trimmed")

Steps = list[tuple[Request, Answer]]
#: C is a fork of B, which is a fork of A. A and B are deleted, and kept for C.
CHAIN: Final[Steps] = [
    (Create(A), CREATED),
    (Create(B, source=A), CREATED),
    (Create(C, source=B), CREATED),
    (Delete(A), DELETED),
    (Delete(B), DELETED),
]


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
LIVE = (Create(A), CREATED)
CLOSE = Append(A, close=True)

#: One thing after the other, and each of these answers is the only right one.
LIVES: dict[str, Steps] = {
    "a stream": [
        (X, NOT_FOUND),
        (Head(A), NOT_FOUND),
        LIVE,
        (Create(A), Answer("exists", 0)),
        (X, appended(2)),
        (Head(A), Answer("head", 2)),
        (Y, appended(4)),
        (Read(A), data(b"x;y;")),
        (Read(A, 2), data(b"y;", start=2)),
        (Read(A, None), data(b"", start=4)),
        (CLOSE, Answer("appended", 4, closed=True)),
        (CLOSE, Answer("already closed", 4, closed=True)),
        (Y, Answer("AppendAfterClose", 4)),
        (Head(A), Answer("head", 4, closed=True)),
        (Read(A), data(b"x;y;", closed=True)),
        (Delete(A), DELETED),
        (Delete(A), NOT_FOUND),
        (Head(A), NOT_FOUND),
        (Create(A, b"new"), Answer("created", 3)),
        (Read(A), data(b"new")),
    ],
    "a producer, and Stream-Seq": [
        LIVE,
        (Append(A, b"1;", claim=("p", 0, 1)), Answer("SequenceGap", 0)),
        (Append(A, b"0;", claim=("p", 0, 0)), appended(2)),
        (Append(A, b"0;", claim=("p", 0, 0)), Answer("duplicate", 2)),
        (Append(A, b"2;", claim=("p", 0, 2)), Answer("SequenceGap", 1)),
        (Append(A, b"1;", claim=("p", 1, 0)), appended(4)),
        (Append(A, b"1;", claim=("p", 0, 1)), Answer("StaleEpoch", 1)),
        (Append(A, b"2", seq="b"), appended(5)),
        (Append(A, b"3", seq="a"), Answer("SequenceRegression")),
        (Append(A, b"4"), appended(6)),
        (Read(A), data(b"0;1;24")),
    ],
    "a fork": [
        (Create(B, source=A), NOT_FOUND),
        (Create(A, b"xyz"), Answer("created", 3)),
        (Create(B, source=A, offset=2, content_type=None), Answer("created", 2)),
        (X, appended(5)),
        (Read(B), data(b"xy")),
        (Append(B, b"b;"), appended(4)),
        (Read(A), data(b"xyzx;")),
        (Delete(A), DELETED),
        (Head(A), Answer("SoftDeleted")),
        (Create(A), Answer("Conflict")),
        (Read(B), data(b"xyb;")),
        (Delete(B), DELETED),
        (Head(A), NOT_FOUND),
        (Create(A), CREATED),
    ],
    "a snapshot": [
        LIVE,
        (X, appended(2)),
        (ReadSnapshot(A, 2), Answer("SnapshotNotFound")),
        (Publish(A, 2, b"folded"), Answer("published")),
        (Read(A), Answer("RetentionGone", 2)),
        (ReadSnapshot(A, 2), Answer("snapshot", data=b"folded")),
        (Publish(A, 2, b"anew"), Answer("published")),
        (ReadSnapshot(A, 2), Answer("snapshot", data=b"anew")),
        (Publish(A, 0, b"older"), Answer("RetentionGone", 2)),
        (Publish(A, 3, b"newer"), Answer("OffsetBeyondTail", 2)),
    ],
    "a trim": [
        LIVE,
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
        (Publish(B, 0, b"s"), Answer("RetentionGone", 2)),
        (Publish(A, 2, b"s"), Answer("published")),
        (Trim(A, 4), Answer("Conflict")),
    ],
    "a bucket": [
        (Create("kk/a"), Answer("BucketNotFound")),
        (CreateBucket("kk"), Answer("created")),
        (CreateBucket("kk"), Answer("BucketExists")),
        (Create("kk/a"), CREATED),
        (CountStreams("kk"), Answer("bucket", 1)),
        (DeleteBucket("kk"), Answer("BucketNotEmpty")),
        (Delete("kk/a"), DELETED),
        (CountStreams("kk"), Answer("bucket", 0)),
        (DeleteBucket("kk"), DELETED),
        (CountStreams("kk"), Answer("BucketNotFound")),
        (Create("kk/a"), Answer("BucketNotFound")),
    ],
}
LETS_GO = (Read(A), Answer("RetentionGone", 2))
#: Beside what a single wrong answer shows.
WRONG = {
    "a doubled append without an answer": in_turn(LIVE, (X, None), (Read(A), data(b"x;x;"))),
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
    "two creations at once that are both new": at_once(*in_turn(LIVE, LIVE)),
    "one deletion too many": at_once(*in_turn(LIVE, (Delete(A), DELETED), (Delete(A), DELETED))),
    "an unknown outcome that happened before its call": in_turn(LIVE, (Read(A), data(b"x;")), (X, None)),
    "an unknown creation that happened twice": in_turn(
        (Create(A), None), (Delete(A), DELETED), (Delete(A), DELETED)
    ),
    "a deleted stream that is gone again after it was not found": in_turn(
        *CHAIN, (Delete(C), DELETED), (Head(A), NOT_FOUND), (Head(A), Answer("SoftDeleted"))
    ),
    "a stream that lets go of what nobody told it to": in_turn(
        LIVE, (X, appended(2)), (Y, appended(4)), LETS_GO
    ),
    "a stream that keeps less than it should": in_turn(
        (Create(A, keep_bytes=3), CREATED), (X, appended(2)), (Y, appended(4)), LETS_GO
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


@pytest.mark.parametrize("history", WRONG.values(), ids=WRONG)
def test_what_no_service_may_do_is_refused(history: list[Operation]) -> None:
    violation = check(history)
    assert violation is not None
    assert "Not linearizable" in str(violation)


#: What a service that is wrong might say instead.
INSTEAD = {
    "created": "exists",
    "exists": "created",
    "appended": "duplicate",
    "duplicate": "appended",
    "deleted": "StreamNotFound",
    "StreamNotFound": "SoftDeleted",
    "SoftDeleted": "StreamNotFound",
    "SnapshotNotFound": "snapshot",
    "BucketNotEmpty": "deleted",
}


def mutated(answer: Answer) -> Iterator[Answer]:
    """A wrong outcome, an offset that is moved, an end that is not one, and data that is lost, doubled,
    altered, swapped or invented."""
    yield replace(answer, outcome=INSTEAD.get(answer.outcome, "deleted"))
    if answer.offset is not None:
        yield replace(answer, offset=answer.offset + 1)
        yield replace(answer, closed=not answer.closed)
    found = answer.data or b""
    other = [
        found[2:],
        found[:-2],
        found + found[-2:],
        found[:2] + found,
        found[2:] + found[:2],
        b"!" + found,
    ]
    for each in other if answer.data is not None else []:
        if each != found:
            yield replace(answer, data=each)
            if answer.offset is not None:
                yield replace(answer, data=each, offset=answer.offset - len(found) + len(each))


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_any_wrong_answer_in_a_life_is_refused(life: Steps) -> None:
    history = in_turn(*life)
    assert check(history) is None
    for index, operation in enumerate(history):
        assert operation.answer is not None
        for answer in mutated(operation.answer):
            changed = [*history[:index], replace(operation, answer=answer), *history[index + 1 :]]
            assert check(changed) is not None, f"{operation} as {answer}"


def test_a_search_that_takes_too_long_is_no_success() -> None:
    with pytest.raises(Undecided):
        check(in_turn(*LIVES["a stream"]), max_steps=3)


def test_streams_are_checked_apart_unless_a_fork_or_a_bucket_ties_them() -> None:
    """A smaller search says the same; parts that belong together must not be torn apart."""
    apart = in_turn(LIVE, (Create(B), CREATED), (Head(A), NOT_FOUND))
    assert [len(part) for part in partition(apart)] == [2, 1]
    forked = [*apart, *in_turn((Create(C, source=A), CREATED), (Create(B, source=C), CREATED))]
    assert [len(part) for part in partition(forked)] == [5]
    in_bucket = in_turn((CreateBucket("kk"), CREATED), (Create("kk/a"), CREATED), (Create("kk/b"), CREATED))
    assert [len(part) for part in partition(in_bucket)] == [3]


def test_the_plain_check_finds_what_is_lost_or_doubled() -> None:
    lost = in_turn(LIVE, (X, appended(2)), (Y, appended(4)), (Read(A), data(b"y;")))
    doubled = in_turn(LIVE, (X, None), (Read(A), data(b"x;x;")))
    assert len(check_exactly_once(lost)) == 1
    assert len(check_exactly_once(doubled)) == 1
    for name in ("a stream", "a trim", "a bucket"):
        assert check_exactly_once(in_turn(*LIVES[name])) == []
