"""Combining, with one fault at each call of one writer, and with each of its rules taken out.

Three writers append at almost the same time, in virtual time, each with a body of its own. Whatever happens
to one of them, the others' appends are acknowledged. What is acknowledged is in the log once, at the offset
that was answered; what was not is there once at most.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from tests.simulation.objects import SimulatedBlobs, SimulatedBucket
from tests.simulation.table import SimulatedTable
from tests.simulation.tasks import VirtualTime
from tests.simulation.world import combining, small_limits
from tests.support import a_key, append_request, create_request, refusal
from tidemark.aws.dynamodb import DynamoDB
from tidemark.aws.retry import NoAnswer
from tidemark.aws.s3 import Objects
from tidemark.janitor.sweep import sweep
from tidemark.log import combining as rules
from tidemark.log.combining import ChainEnd, Mail
from tidemark.log.due import Packing
from tidemark.log.dynamodb_table import DynamoDBTable
from tidemark.log.schema import decode_mail
from tidemark.protocol import errors
from tidemark.protocol.append import Outcome
from tidemark.protocol.messages import Messages
from tidemark.service import combine
from tidemark.service.append import append
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.load import decide
from tidemark.service.read import read
from tidemark.service.stores import Stores

WRITERS = 3
BODIES = [b"<%d>" % number for number in range(WRITERS)]
#: More calls than a writer makes.
CALLS = 24
SEEDS = 4
WRITES = frozenset({"PutItem", "TransactWriteItems", "UpdateItem", "DeleteItem"})

Reply = tuple[int, bytes]
Send = Callable[[str, bytes], Reply]
#: What becomes of a call: how to send it, its operation and its body.
Fault = Callable[[Send, str, bytes], Reply]


@pytest.fixture(autouse=True)
def _combining() -> Iterator[None]:
    with combining(forced=True):
        yield


class Killed(Exception):
    """The process is killed: nothing of the use case that sent the call runs on."""


def as_it_is(send: Send, operation: str, body: bytes) -> Reply:
    return send(operation, body)


class Contest:
    """A stream, and writers that begin within two milliseconds."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.time = VirtualTime()
        self.table = SimulatedTable(lambda: round(self.time.now * 1000))
        self.bucket = SimulatedBucket()
        self.key = a_key()
        self.answers: dict[bytes, Any] = {}
        self._create(self.stores())

    def stores(self, fault: Fault = as_it_is) -> Stores:
        """A process, all of whose calls are subject to the fault."""
        dynamodb = DynamoDB(lambda operation, body: fault(self.send, operation, body))
        dynamodb.sleep, dynamodb.now = self.time.sleep, lambda: self.time.now
        return Stores(
            DynamoDBTable(dynamodb, "simulated"),
            SimulatedBlobs(self.bucket, Objects(self.bucket.send), lambda: None),
            clock_ms=lambda: 1_800_000_000_000 + round(self.time.now * 1000),
            new_id=lambda: f"{self.chance.getrandbits(64):016x}",
            concurrency=self.time,
        )

    def send(self, operation: str, body: bytes) -> Reply:
        self.time.sleep(self.chance.uniform(0.002, 0.003))
        answer = self.table.send(operation, body)
        self.time.sleep(self.chance.uniform(0.002, 0.003))
        return answer

    def write(self, *bodies: bytes, fault: Fault = as_it_is, **asked: Any) -> None:
        """A process for each, which begins soon."""
        for body in bodies:
            call = partial(self._append, self.stores(fault), body, asked)
            self.time.spawn(call, after=self.chance.uniform(0, 0.002))

    def _append(self, stores: Stores, body: bytes, asked: dict[str, Any]) -> None:
        try:
            [self.answers[body]] = append(stores, self.key, [append_request(body, **asked)])
        except (errors.ProtocolError, Killed) as failure:
            self.answers[body] = failure

    def run(self, seconds: float = 60) -> None:
        self.time.run(until=self.time.now + seconds)

    def do(self, call: Callable[[], Any]) -> Any:
        """On its own, some seconds later."""
        found: list[Any] = []
        self.time.spawn(lambda: found.append(call()), after=1)
        self.run(3)
        return found[0]

    def _create(self, stores: Stores) -> None:
        self.do(lambda: create(stores, self.key, create_request()))

    def create_again(self) -> None:
        stores = self.stores()
        self.do(lambda: delete(stores, self.key))
        self._create(stores)

    def data(self) -> bytes:
        """The log, as a process that knows nothing reads it."""
        found: bytes = self.do(lambda: read(self.stores(), self.key, 0).data)
        return found

    def problems(self, *may_fail: bytes) -> list[str]:
        """What is wrong with the log."""
        data, problems = self.data(), list[str]()
        for body, answer in self.answers.items():
            times, end = data.count(body), data.find(body) + len(body)
            if isinstance(answer, Outcome):
                if times != 1 or end != answer.next_offset:
                    problems.append(f"{body!r} is acknowledged at {answer.next_offset}: {data!r}")
            elif times > 1 or (isinstance(answer, errors.Busy) and times):
                problems.append(f"{body!r} is there {times} times after {answer!r}")
            if body not in may_fail and not isinstance(answer, Outcome):
                problems.append(f"{body!r} is not acknowledged: {answer!r}")
        if len(data) != sum(len(body) * data.count(body) for body in self.answers):
            problems.append(f"the log holds something else: {data!r}")
        return problems


def play(seed: int, make_fault: Callable[[Contest], Fault]) -> list[str]:
    """The first writer is subject to the fault. Of every second seed, the batches' bytes go to S3."""
    contest = Contest(seed)
    contest.write(BODIES[0], fault=make_fault(contest))
    contest.write(*BODIES[1:])
    with patch.object(rules, "COMBINED_INLINE_BYTES", 0 if seed % 2 else rules.COMBINED_INLINE_BYTES):
        contest.run()
    assert len(contest.answers) == WRITERS, "everybody has an answer"
    return contest.problems(BODIES[0])


def crash_before(_send: Send, _operation: str, _body: bytes) -> Reply:
    raise Killed


def crash_behind(send: Send, operation: str, body: bytes) -> Reply:
    send(operation, body)
    raise Killed


def lose_the_reply(send: Send, operation: str, body: bytes) -> Reply:
    send(operation, body)
    raise NoAnswer("lost")


def never_arrive(_send: Send, _operation: str, _body: bytes) -> Reply:
    raise NoAnswer("dropped")


def throttle(_send: Send, _operation: str, _body: bytes) -> Reply:
    return refusal("ProvisionedThroughputExceededException")


def at_call(number: int, fault: Fault) -> Callable[[Contest], Fault]:
    def make(_contest: Contest) -> Fault:
        calls = count(1)

        def now_and_then(*call: Any) -> Reply:
            return (fault if next(calls) == number else as_it_is)(*call)

        return now_and_then

    return make


def silence_from(number: int) -> Callable[[Contest], Fault]:
    """From one call on a process gets no answer, though some of its calls arrive."""

    def make(contest: Contest) -> Fault:
        calls = count(1)

        def fault(*call: Any) -> Reply:
            if next(calls) < number:
                return as_it_is(*call)
            return (lose_the_reply if contest.chance.random() < 0.5 else never_arrive)(*call)

        return fault

    return make


def at_the(operation: str, fault: Fault, body: bytes = b"") -> Fault:
    """At each call of an operation with these bytes in it."""
    return lambda send, sent, sent_body: (fault if sent == operation and body in sent_body else as_it_is)(
        send, sent, sent_body
    )


@pytest.mark.parametrize(
    "fault", [crash_before, crash_behind, lose_the_reply, never_arrive, throttle, silence_from]
)
def test_a_fault_at_any_call_loses_and_doubles_nothing_and_stops_nobody_else(fault: Any) -> None:
    """A writer that is cut off is told that the outcome is unknown, or that nothing happened."""
    for number in range(1, CALLS):
        for seed in range(SEEDS):
            found = play(seed, silence_from(number) if fault is silence_from else at_call(number, fault))
            assert not found, f"call {number}, seed {seed}: {found}"


def echoing(contest: Contest) -> Fault:
    """After each call of this process, every write of it so far arrives once more."""
    sent: list[tuple[str, bytes]] = []

    def fault(send: Send, operation: str, body: bytes) -> Reply:
        answer = send(operation, body)
        if operation in WRITES:
            sent.append((operation, body))
        for earlier in sent:
            contest.table.send(*earlier)
        return answer

    return fault


def test_copies_of_every_write_at_any_later_time_change_nothing() -> None:
    for seed in range(10 * SEEDS):
        assert not play(seed, echoing)


def test_mail_of_a_writer_throttled_at_a_lookup_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outcome does not become unknown by that: it goes on, and looks up again."""
    for number in range(1, CALLS):
        contest, decisions = Contest(number), count(1)

        def decided(*given: Any, decisions: Any = decisions, number: int = number) -> Any:
            if next(decisions) == number:
                raise errors.Busy
            return decide(*given)

        monkeypatch.setattr(combine, "decide", decided)
        contest.write(*BODIES)
        contest.run()
        refused = [body for body, answer in contest.answers.items() if isinstance(answer, errors.Busy)]
        assert not contest.problems(*refused[:1]), number
        assert all(isinstance(answer, Outcome | errors.Busy) for answer in contest.answers.values()), number


# --- one rule after the other taken out --------------------------------------------------


def some_seed_goes_wrong(seeds: int = 300) -> bool:
    """Two processes of which one is cut off at some call, and the third is well."""
    for seed in range(seeds):
        try:
            if play(seed, silence_from(1 + seed % CALLS)):
                return True
        except (AssertionError, errors.ProtocolError):
            return True
    return False


def open_although_it_is_named(link: ChainEnd, box: int, _mail_id: str) -> bool:
    return box in {link.offset, link.last_start}


def nothing_has_changed(self: Any) -> Any:
    try:
        return self._run()
    except errors.ProtocolError as failure:
        raise errors.Busy from failure


@pytest.mark.parametrize(
    ("place", "name", "broken"),
    [
        # Its writer knows that it is done; the others find its mail in the box, and commit it once more.
        pytest.param(ChainEnd, "is_open", open_although_it_is_named, id="what the last batch names"),
        # Its mail is open when it gives up.
        pytest.param(combine._Combining, "run", nothing_has_changed, id="that the outcome is unknown"),
    ],
)
def test_without_a_rule_mail_is_committed_twice_or_its_writer_told_what_is_not_so(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, broken: Any
) -> None:
    monkeypatch.setattr(place, name, broken)
    assert some_seed_goes_wrong()


def test_an_append_that_another_writer_misreads_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a release that does not know the mail's form: it commits no bytes under the mail's name."""
    nothing = Messages(b"", (0,))

    def misread(item: Any) -> Mail:
        mail = decode_mail(item)
        return replace(mail, append=replace(mail.append, messages=nothing))

    monkeypatch.setattr("tidemark.log.schema.decode_mail", misread)
    unknown = 0
    for seed in range(SEEDS):
        contest = Contest(seed)
        contest.write(*BODIES)
        contest.run()
        data = contest.data()
        for body, answer in contest.answers.items():
            assert not isinstance(answer, Outcome) or body in data
            unknown += isinstance(answer, errors.OutcomeUnknown)
    assert unknown


def mail_across_a_re_creation() -> bytes:
    """A writer posts mail and dies; the stream is deleted, and created again."""
    contest = Contest(1)
    contest.write(b"<old>", fault=at_the("PutItem", crash_behind))
    contest.run(1)
    contest.create_again()
    contest.write(b"<new>")
    contest.run(1)
    assert isinstance(contest.answers[b"<old>"], Killed)
    return contest.data()


def test_without_a_box_for_each_incarnation_a_re_created_stream_gets_old_mail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert mail_across_a_re_creation() == b"<new>"
    of_any_incarnation = lambda _incarnation, box: f"mail/any/{box:016d}"  # noqa: E731
    monkeypatch.setattr("tidemark.log.schema.mail.mail_pk", of_any_incarnation)
    monkeypatch.setattr("tidemark.log.schema.mail_pk", of_any_incarnation)
    assert mail_across_a_re_creation() == b"<old><new>"


# --- what else happens to a stream ------------------------------------------------------

Act = Callable[[Contest, Stores], object]


def other_append(**asked: Any) -> Act:
    """Of a group, so that it races. The second append of the group is refused: it has no body."""
    group = [append_request(**asked), append_request()]
    return lambda contest, other: append(other, contest.key, group)


def in_turn(*acts: Act) -> Act:
    return lambda contest, other: [act(contest, other) for act in acts]


def of_producers(sequence: int) -> Act:
    """One append of each of three, more than a batch carries."""
    return in_turn(*(other_append(body=b"<%s>" % name.encode(), claim=(name, 0, sequence)) for name in "abc"))


def create_anew(contest: Contest, other: Stores) -> None:
    delete(other, contest.key)
    contest.time.sleep(0.01)
    create(other, contest.key, create_request())


def commit_all_mail(body: bytes, claim: Any = None) -> Act:
    """By an append of a process that knows nothing yet."""
    asked = append_request(body, claim=claim)
    return lambda contest, _other: append(contest.stores(), contest.key, [asked])


def pack(contest: Contest, other: Stores) -> None:
    other.packing = Packing(0, every_bytes=1, min_batches=2)
    in_turn(other_append(body=b"<y>"), other_append(body=b"<z>"))(contest, other)
    assert sweep(other).packed == 1


def run_while_waiting(act: Act, before: Act | None = None, **asked: Any) -> tuple[Any, Contest]:
    """What a writer is answered when `act` happens right after it has posted its mail."""
    contest = Contest(2)
    other, pending = contest.stores(), [act]
    if before is not None:
        contest.do(lambda: before(contest, other))

    def acting(send: Send, operation: str, body: bytes) -> Reply:
        answer = send(operation, body)
        if pending:
            pending.pop()(contest, other)
        return answer

    contest.write(b"<mail>", fault=at_the("PutItem", acting, b'"mail/'), **asked)
    contest.run()
    return contest.answers[b"<mail>"], contest


@pytest.mark.parametrize(
    ("others", "own", "refusal"),
    [
        (lambda contest, other: delete(other, contest.key), {}, errors.StreamNotFound),
        (other_append(body=b"", close=True), {}, errors.AppendAfterClose),
        (other_append(body=b"x", claim=("p", 1, 0)), {"claim": ("p", 0, 0)}, errors.StaleEpoch),
        (other_append(body=b"x", seq="9"), {"seq": "8"}, errors.SequenceRegression),
    ],
)
def test_mail_is_refused_by_what_came_before_it(others: Act, own: dict[str, Any], refusal: type) -> None:
    assert isinstance(run_while_waiting(others, **own)[0], refusal)


MAIL_OF = {name: other_append(body=b"<mail>", claim=(name, number, 0)) for number, name in enumerate("pq")}


@pytest.mark.parametrize(
    ("before", "meanwhile", "claim", "kind", "log"),
    [
        pytest.param(None, create_anew, None, "appended", b"<mail>", id="created again"),
        pytest.param(None, MAIL_OF["p"], ("p", 0, 0), "duplicate", b"<mail>", id="repeated elsewhere"),
        # A batch no longer carries all producers. The item of this one says more of it than the head that its
        # writer decides on.
        pytest.param(
            of_producers(0),
            in_turn(MAIL_OF["q"], of_producers(1)),
            ("q", 1, 0),
            "duplicate",
            b"<a><b><c><mail>",
            id="repeated elsewhere, and pushed out",
        ),
        # Its writer looks at the first batch. The producer's item says already that the append is there.
        pytest.param(
            of_producers(0),
            in_turn(other_append(body=b"<x>"), commit_all_mail(b"<y>", ("q", 0, 0))),
            ("p", 0, 0),
            "appended",
            b"<a><b><c><x><mail>",
            id="committed by the second batch, and pushed out",
        ),
    ],
)
def test_mail_is_a_duplicate_of_its_repetition_and_not_of_itself(
    before: Act | None, meanwhile: Act, claim: Any, kind: str, log: bytes
) -> None:
    with small_limits(recent_producers=1):
        answer, _ = run_while_waiting(meanwhile, before, claim=claim)
    assert isinstance(answer, Outcome)
    assert (answer.kind.value, answer.next_offset) == (kind, len(log))


def test_a_writer_that_sleeps_until_its_mail_is_packed_is_told_that_the_outcome_is_unknown() -> None:
    """Another one has committed the mail, and a pack does not name it: it must not be committed once more."""
    answer, contest = run_while_waiting(in_turn(commit_all_mail(b"<x>"), pack))
    assert isinstance(answer, errors.OutcomeUnknown)
    assert contest.data() == b"<mail><x><y><z>"


def test_mail_of_a_dead_writer_is_left_where_it_is_after_its_time() -> None:
    """It was never acknowledged, and whoever sent it has long been told so."""
    contest = Contest(3)
    contest.write(b"<dead>", fault=at_the("PutItem", crash_behind))
    contest.time.spawn(lambda: None, after=40)
    contest.run()
    contest.write(b"<late>")
    contest.run()
    assert contest.problems(b"<dead>") == []
    assert contest.answers[b"<late>"].next_offset == len(b"<late>")


def test_mail_that_is_damaged_stops_nobody() -> None:
    def damage(send: Send, operation: str, body: bytes) -> Reply:
        asked = orjson.loads(body)
        asked["Item"]["b"] = {"B": "AAAA" * 9}
        send(operation, orjson.dumps(asked))
        raise Killed

    contest = Contest(4)
    contest.write(b"<dead>", fault=at_the("PutItem", damage, b'"mail/'))
    contest.run(1)
    contest.write(b"<well>")
    contest.run()
    assert isinstance(contest.answers[b"<well>"], Outcome)
