"""Combining, with one fault at each call of one writer, and with each of its rules taken out.

Three writers append at almost the same time, in virtual time, each with a body of its own. Whatever happens
to one of them, the others' appends are acknowledged. What is acknowledged is in the log once, at the offset
that was answered; what was not is there once at most.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from tests.simulation.objects import SimulatedBlobs, SimulatedBucket
from tests.simulation.table import SimulatedTable
from tests.simulation.virtual_time import VirtualTime
from tests.simulation.world import combining, small_limits
from tests.support import a_key, append_request, create_request, refusal
from tidemark.aws.dynamodb import DynamoDB
from tidemark.aws.retry import NoAnswer
from tidemark.aws.s3 import Objects
from tidemark.janitor.sweep import sweep
from tidemark.log.dynamodb import DynamoDBTable
from tidemark.log.schema import decode_mail
from tidemark.protocol.append import Outcome
from tidemark.protocol.errors import Busy, OutcomeUnknown, ProtocolError, StreamNotFound
from tidemark.protocol.mail import COMBINED_INLINE_BYTES, MAIL_BYTES, ChainEnd, Mail
from tidemark.protocol.messages import Messages
from tidemark.protocol.pack import Packing
from tidemark.service import combine
from tidemark.service.append import append
from tidemark.service.create import create
from tidemark.service.decide import decide
from tidemark.service.delete import delete
from tidemark.service.read import read
from tidemark.service.stores import Stores

WRITERS = 3
BODIES = [b"<%d>" % number for number in range(WRITERS)]
#: More calls than a writer makes.
CALLS = 24
SEEDS = 6
WRITES = frozenset({"PutItem", "TransactWriteItems", "UpdateItem", "DeleteItem"})

Send = Callable[[str, bytes], tuple[int, bytes]]


@pytest.fixture(autouse=True)
def _combining() -> Iterator[None]:
    with combining(forced=True):
        yield


class Killed(Exception):
    """The process is killed: nothing of the use case that sent the call runs on."""


class Contest:
    """A stream, and writers that begin within two milliseconds."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.time = VirtualTime()
        self.table = SimulatedTable(lambda: round(self.time.now * 1000))
        self.bucket = SimulatedBucket()
        self.key = a_key()
        self.answers: dict[bytes, Any] = {}
        self.calls = 0

    def stores(self, around: Callable[[Send], Send] = lambda send: send) -> Stores:
        dynamodb = DynamoDB(around(self.send))
        dynamodb.sleep, dynamodb.now = self.time.sleep, lambda: self.time.now
        return Stores(
            DynamoDBTable(dynamodb, "simulated"),
            SimulatedBlobs(self.bucket, Objects(self.bucket.send), lambda: None),
            clock_ms=lambda: 1_800_000_000_000 + round(self.time.now * 1000),
            new_id=lambda: f"{self.chance.getrandbits(64):016x}",
            concurrency=self.time,
        )

    def send(self, operation: str, body: bytes) -> tuple[int, bytes]:
        self.calls += 1
        self.time.sleep(self.chance.uniform(0.002, 0.003))
        answer = self.table.send(operation, body)
        self.time.sleep(self.chance.uniform(0.002, 0.003))
        return answer

    def spawn(self, stores: Stores, body: bytes, **asked: Any) -> None:
        def run() -> None:
            try:
                [self.answers[body]] = append(stores, self.key, [append_request(body, **asked)])
            except (ProtocolError, Killed) as failure:
                self.answers[body] = failure

        self.time.spawn(run, after=self.chance.uniform(0, 0.002))

    def begin(self) -> None:
        self.time.spawn(lambda: create(self.stores(), self.key, create_request()))
        self.time.run(until=1)

    def run(self) -> None:
        self.time.run(until=60)

    def data(self) -> bytes:
        """The log, as a process that knows nothing reads it."""
        pages: list[bytes] = []
        self.time.spawn(lambda: pages.append(read(self.stores(), self.key, 0).data))
        self.time.run(until=120)
        return pages[0]

    def problems(self, *, may_fail: bytes) -> list[str]:
        """What is wrong with the log."""
        data, problems = self.data(), list[str]()
        for body, answer in self.answers.items():
            times, end = data.count(body), data.find(body) + len(body)
            if isinstance(answer, Outcome):
                if times != 1 or end != answer.next_offset:
                    problems.append(f"{body!r} is acknowledged at {answer.next_offset}: {data!r}")
            elif times > 1 or (isinstance(answer, Busy) and times):
                problems.append(f"{body!r} is there {times} times after {answer!r}")
            if body != may_fail and not isinstance(answer, Outcome):
                problems.append(f"{body!r} is not acknowledged: {answer!r}")
        if len(data) != sum(len(body) * data.count(body) for body in self.answers):
            problems.append(f"the log holds something else: {data!r}")
        return problems


def play(seed: int, around: Callable[[Contest], Callable[[Send], Send]]) -> list[str]:
    """Of every second seed, the batches' bytes go to S3."""
    contest = Contest(seed)
    contest.begin()
    contest.spawn(contest.stores(around(contest)), BODIES[0])
    for body in BODIES[1:]:
        contest.spawn(contest.stores(), body)
    with patch.object(combine, "COMBINED_INLINE_BYTES", 0 if seed % 2 else COMBINED_INLINE_BYTES):
        contest.run()
    assert len(contest.answers) == WRITERS, "everybody has an answer"
    return contest.problems(may_fail=BODIES[0])


def at_call(number: int, fault: Callable[[Send, str, bytes], tuple[int, bytes]]) -> Any:
    """Break one call of a process."""

    def around(_contest: Contest) -> Callable[[Send], Send]:
        made = 0

        def breaking(send: Send) -> Send:
            def sending(operation: str, body: bytes) -> tuple[int, bytes]:
                nonlocal made
                made += 1
                return fault(send, operation, body) if made == number else send(operation, body)

            return sending

        return breaking

    return around


def crash_before(_send: Send, _operation: str, _body: bytes) -> tuple[int, bytes]:
    raise Killed


def crash_behind(send: Send, operation: str, body: bytes) -> tuple[int, bytes]:
    send(operation, body)
    raise Killed


def lose_the_reply(send: Send, operation: str, body: bytes) -> tuple[int, bytes]:
    send(operation, body)
    raise NoAnswer("lost")


def never_arrive(_send: Send, _operation: str, _body: bytes) -> tuple[int, bytes]:
    raise NoAnswer("dropped")


def throttle(_send: Send, _operation: str, _body: bytes) -> tuple[int, bytes]:
    return refusal("ProvisionedThroughputExceededException")


@pytest.mark.parametrize("fault", [crash_before, crash_behind, lose_the_reply, never_arrive, throttle])
def test_a_fault_at_any_call_loses_and_doubles_nothing_and_stops_nobody_else(fault: Any) -> None:
    for number in range(1, CALLS):
        for seed in range(SEEDS):
            found = play(seed, at_call(number, fault))
            assert not found, f"call {number}, seed {seed}: {found}"


def test_mail_of_a_writer_that_is_throttled_at_a_lookup_is_settled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its outcome does not become unknown by that: it goes on, and looks up again."""
    for number in range(1, CALLS):
        contest, decisions = Contest(number), count(1)

        def decided(*given: Any, decisions: Any = decisions, number: int = number) -> Any:
            if next(decisions) == number:
                raise Busy
            return decide(*given)

        monkeypatch.setattr(combine, "decide", decided)
        contest.begin()
        for body in BODIES:
            contest.spawn(contest.stores(), body)
        contest.run()
        refused = [body for body, answer in contest.answers.items() if isinstance(answer, Busy)]
        assert not contest.problems(may_fail=refused[0] if refused else b""), number
        assert all(isinstance(answer, Outcome | Busy) for answer in contest.answers.values()), number


def silence_from(number: int) -> Any:
    """From one call on a process gets no answer, though some of its calls arrive."""

    def around(contest: Contest) -> Callable[[Send], Send]:
        made = 0

        def breaking(send: Send) -> Send:
            def sending(operation: str, body: bytes) -> tuple[int, bytes]:
                nonlocal made
                made += 1
                if made < number:
                    return send(operation, body)
                if contest.chance.random() < 0.5:
                    send(operation, body)
                raise NoAnswer("silent")

            return sending

        return breaking

    return around


def test_a_writer_that_is_cut_off_at_any_call_is_told_that_the_outcome_is_unknown_or_nothing_happened() -> (
    None
):
    for number in range(1, CALLS):
        for seed in range(SEEDS):
            found = play(seed, silence_from(number))
            assert not found, f"call {number}, seed {seed}: {found}"


def echoing(contest: Contest) -> Callable[[Send], Send]:
    """After each call of this process, every write of it so far arrives once more."""
    sent: list[tuple[str, bytes]] = []

    def around(send: Send) -> Send:
        def sending(operation: str, body: bytes) -> tuple[int, bytes]:
            answer = send(operation, body)
            if operation in WRITES:
                sent.append((operation, body))
            for earlier in sent:
                contest.table.send(*earlier)
            return answer

        return sending

    return around


def test_copies_of_every_write_at_any_later_time_change_nothing() -> None:
    for seed in range(10 * SEEDS):
        assert not play(seed, echoing)


# --- one rule after the other taken out --------------------------------------------------


def some_seed_goes_wrong(seeds: int = 300) -> bool:
    """Two processes of which one is cut off at some call, and the third is well."""
    for seed in range(seeds):
        number = 1 + seed % CALLS
        try:
            if play(seed, silence_from(number)):
                return True
        except (AssertionError, ProtocolError):
            return True
    return False


def open_although_it_is_named(link: ChainEnd, box: int, _mail_id: str) -> bool:
    return box in {link.offset, link.last_start}


def test_without_what_the_last_batch_names_mail_is_committed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer knows that it is done; the others find its mail in the box, and commit it once more."""
    assert not some_seed_goes_wrong(60)
    monkeypatch.setattr(ChainEnd, "is_open", open_although_it_is_named)
    assert some_seed_goes_wrong()


def test_without_saying_that_the_outcome_is_unknown_a_writer_is_told_what_is_not_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its mail is open when it gives up."""

    def nothing_has_changed(self: Any) -> Any:
        try:
            return self._run()
        except ProtocolError as failure:
            raise Busy from failure

    monkeypatch.setattr(combine._Combining, "run", nothing_has_changed)
    assert some_seed_goes_wrong()


def test_an_append_that_another_writer_has_misread_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a release that does not know the mail's form: it commits no bytes under the mail's name."""
    nothing = Messages(b"", (0,))

    def misread(item: Any) -> Mail:
        mail = decode_mail(item)
        return replace(mail, append=replace(mail.append, messages=nothing))

    monkeypatch.setattr("tidemark.log.mailbox.decode_mail", misread)
    unknown = 0
    for seed in range(SEEDS):
        contest = Contest(seed)
        contest.begin()
        for body in BODIES:
            contest.spawn(contest.stores(), body)
        contest.run()
        data = contest.data()
        for body, answer in contest.answers.items():
            assert not isinstance(answer, Outcome) or body in data
            unknown += isinstance(answer, OutcomeUnknown)
    assert unknown


def test_without_a_box_for_each_incarnation_a_re_created_stream_gets_old_mail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert mail_across_a_re_creation() == b"<new>"
    of_any_incarnation = lambda _incarnation, box: f"mail/any/{box:016d}"  # noqa: E731
    monkeypatch.setattr("tidemark.log.schema.mail.mail_pk", of_any_incarnation)
    monkeypatch.setattr("tidemark.log.mailbox.mail_pk", of_any_incarnation)
    assert mail_across_a_re_creation() == b"<old><new>"


def mail_across_a_re_creation() -> bytes:
    """A writer posts mail and dies; the stream is deleted, and created again."""
    contest = Contest(1)
    contest.begin()
    contest.spawn(contest.stores(dying_behind("PutItem")), b"<old>")
    contest.time.run(until=2)
    stores = contest.stores()
    contest.time.spawn(lambda: delete(stores, contest.key))
    contest.time.run(until=3)
    contest.time.spawn(lambda: create(stores, contest.key, create_request()))
    contest.time.run(until=4)
    contest.spawn(contest.stores(), b"<new>")
    contest.time.run(until=5)
    assert isinstance(contest.answers[b"<old>"], Killed)
    pages: list[bytes] = []
    contest.time.spawn(lambda: pages.append(read(contest.stores(), contest.key, 0).data))
    contest.time.run(until=6)
    return pages[0]


def dying_behind(operation: str) -> Callable[[Send], Send]:
    """The process dies behind its first call of the operation."""

    def around(send: Send) -> Send:
        def sending(sent: str, body: bytes) -> tuple[int, bytes]:
            answer = send(sent, body)
            if sent == operation:
                raise Killed
            return answer

        return sending

    return around


# --- what else happens to a stream ------------------------------------------------------


def run_while_waiting(
    act: Callable[[Contest, Stores], object],
    before: Callable[[Contest, Stores], object] = lambda _contest, _other: None,
    **asked: Any,
) -> Any:
    """What a writer is answered when `act` happens right after it has posted its mail."""
    contest = Contest(2)
    contest.begin()
    other = contest.stores()
    contest.time.spawn(lambda: before(contest, other))
    contest.time.run(until=2)

    def around(send: Send) -> Send:
        pending = [act]

        def sending(operation: str, body: bytes) -> tuple[int, bytes]:
            answer = send(operation, body)
            if operation == "PutItem" and b'"mail/' in body and pending:
                pending.pop()(contest, other)
            return answer

        return sending

    contest.spawn(contest.stores(around), b"<mail>", **asked)
    contest.run()
    return contest.answers[b"<mail>"]


def test_mail_to_a_stream_that_is_deleted_gets_404() -> None:
    answer = run_while_waiting(lambda contest, other: delete(other, contest.key))
    assert isinstance(answer, StreamNotFound)


def test_mail_to_a_stream_that_is_deleted_and_created_again_goes_to_the_new_one() -> None:
    def again(contest: Contest, other: Stores) -> None:
        delete(other, contest.key)
        contest.time.sleep(0.01)
        create(other, contest.key, create_request())

    answer = run_while_waiting(again)
    assert isinstance(answer, Outcome)
    assert answer.next_offset == len(b"<mail>")


def other_append(**asked: Any) -> Callable[[Contest, Stores], object]:
    """Of a group, so that it races. The second append of the group is refused: it has no body."""
    group = [append_request(**asked), append_request()]
    return lambda contest, other: append(other, contest.key, group)


@pytest.mark.parametrize(
    ("others", "own", "refusal_name"),
    [
        ({"body": b"", "close": True}, {}, "StreamClosed"),
        ({"body": b"x", "close": True}, {}, "StreamClosed"),
        ({"body": b"x", "claim": ("p", 1, 0)}, {"claim": ("p", 0, 0)}, "ProducerFenced"),
        ({"body": b"x", "seq": "9"}, {"seq": "8"}, "SequenceRegression"),
    ],
)
def test_mail_is_refused_by_what_came_before_it(
    others: dict[str, Any], own: dict[str, Any], refusal_name: str
) -> None:
    answer = run_while_waiting(other_append(**others), **own)
    assert type(answer).__name__ == refusal_name


def test_mail_of_a_producer_that_has_repeated_it_elsewhere_is_a_duplicate() -> None:
    answer = run_while_waiting(other_append(body=b"<mail>", claim=("p", 0, 0)), claim=("p", 0, 0))
    assert isinstance(answer, Outcome)
    assert (answer.kind.value, answer.next_offset) == ("duplicate", len(b"<mail>"))


def test_mail_of_a_producer_that_repeats_it_and_is_pushed_out_elsewhere_is_a_duplicate() -> None:
    """So many producers have written that a batch no longer carries all of them. Its own item then says
    more of this one than the head that the writer decides on."""

    def repeat(contest: Contest, other: Stores) -> None:
        append_by_others(contest, other, own=("p", 1, 0))

    with small_limits():
        answer = run_while_waiting(repeat, before=append_by_others, claim=("p", 1, 0))
    assert isinstance(answer, Outcome)
    assert (answer.kind.value, answer.next_offset) == ("duplicate", len(b"<a><b><c><mail>"))


def test_mail_that_the_second_batch_commits_and_pushes_out_is_no_duplicate_of_itself() -> None:
    """Its writer looks at the first batch. The item of its producer says already that the append is there."""

    def commit_in_the_second(contest: Contest, other: Stores) -> None:
        other_append(body=b"<x>")(contest, other)
        append(contest.stores(), contest.key, [append_request(b"<y>", claim=("q", 0, 0))])

    with small_limits(recent_producers=1):
        answer = run_while_waiting(commit_in_the_second, before=append_by_others, claim=("p", 0, 0))
    assert isinstance(answer, Outcome)
    assert (answer.kind.value, answer.next_offset) == ("appended", len(b"<a><b><c><x><mail>"))


def test_a_writer_that_sleeps_until_its_mail_is_packed_is_told_that_the_outcome_is_unknown() -> None:
    """Another one has committed the mail, and a pack does not name it: it must not be committed once more."""
    contests: list[Contest] = []

    def commit_and_pack(contest: Contest, other: Stores) -> None:
        append(contest.stores(), contest.key, [append_request(b"<x>")])
        other.packing = Packing(0, every_bytes=1, min_batches=2)
        for body in (b"<y>", b"<z>"):
            other_append(body=body)(contest, other)
        assert sweep(other).packed == 1
        contests.append(contest)

    assert isinstance(run_while_waiting(commit_and_pack), OutcomeUnknown)
    assert contests[0].data() == b"<mail><x><y><z>"


def append_by_others(contest: Contest, stores: Stores, own: tuple[str, int, int] | None = None) -> None:
    """One of each producer, more than a batch carries, behind the one whose repetition is given."""
    if own is not None:
        other_append(body=b"<mail>", claim=own)(contest, stores)
    for name in "abc":
        number = 0 if own is None else 1
        other_append(body=b"<%s>" % name.encode(), claim=(name, 0, number))(contest, stores)


def test_stream_seq_and_producers_are_decided_in_the_order_of_the_batch() -> None:
    """Writers with rising numbers, at once: those that are accepted are in the log in their order."""
    for seed in range(10 * SEEDS):
        contest = Contest(seed)
        contest.begin()
        for number in range(4):
            contest.spawn(contest.stores(), b"<%d>" % number, seq=str(number))
        contest.run()
        taken = {body: answer for body, answer in contest.answers.items() if isinstance(answer, Outcome)}
        ends = [taken[body].next_offset for body in sorted(taken)]
        assert ends == sorted(ends), contest.answers
        assert taken, "one of them is first"


def test_mail_of_a_dead_writer_is_left_where_it_is_after_its_time() -> None:
    """It was never acknowledged, and whoever sent it has long been told so."""
    contest = Contest(3)
    contest.begin()
    contest.spawn(contest.stores(dying_behind("PutItem")), b"<dead>")
    contest.time.spawn(lambda: None, after=40)
    contest.time.run(until=50)
    contest.spawn(contest.stores(), b"<late>")
    contest.run()
    assert contest.problems(may_fail=b"<dead>") == []
    assert contest.answers[b"<late>"].next_offset == len(b"<late>")


@pytest.mark.parametrize("large", [0, 1, 3])
def test_what_a_crowd_appends_is_read_back_wherever_its_bytes_are(
    monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    """In the box, where they go to S3 together, or in S3 from the beginning."""
    monkeypatch.setattr(combine, "COMBINED_INLINE_BYTES", 8)
    contest = Contest(5)
    contest.begin()
    bodies = [b"<large %d>" % n + b"x" * MAIL_BYTES if n < large else b"<small %d>" % n for n in range(4)]
    for body in bodies:
        contest.spawn(contest.stores(), body)
    contest.run()
    assert contest.problems(may_fail=b"") == []
    assert contest.bucket.objects


def test_mail_that_is_damaged_stops_nobody() -> None:
    contest = Contest(4)
    contest.begin()

    def damaging(send: Send) -> Send:
        def sending(operation: str, body: bytes) -> tuple[int, bytes]:
            if operation == "PutItem" and b'"mail/' in body:
                asked = orjson.loads(body)
                asked["Item"]["b"] = {"B": "AAAA" * 9}
                send(operation, orjson.dumps(asked))
                raise Killed
            return send(operation, body)

        return sending

    contest.spawn(contest.stores(damaging), b"<dead>")
    contest.time.run(until=2)
    contest.spawn(contest.stores(), b"<well>")
    contest.run()
    assert isinstance(contest.answers[b"<well>"], Outcome)
