"""The state of a shared subscription: a table of receipts, and whatever workers do, in any order."""

import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st

from tidemark.subscriptions import shared
from tidemark.subscriptions.shared import Found, Settlement, SharedMessage, Window

TAG, NOW, LEASE = "0a0b0c0d", 1_000_000, 1_000


def receipt(end: int, deliveries: int = 1, tag: str = TAG) -> str:
    return shared.make_receipt(SharedMessage(end, deliveries), tag)


#: Committed at 10; 20 was done, 30 is under way for the second time, 40 was given back, 50 waits for its key.
DONE, HELD = SharedMessage(20, 1, done=True), SharedMessage(30, 2, NOW + LEASE)
BACK, BLOCKED = SharedMessage(40, 1), SharedMessage(50, key=7)
WINDOW = Window("inc", 10, (SharedMessage(15, 1, NOW - 1), DONE, HELD, BACK, BLOCKED), 5)


@pytest.mark.parametrize(
    ("verb", "of", "is_late", "then"),
    [
        ("done", receipt(30, 2), False, HELD._replace(done=True, until_ms=None)),
        ("done", receipt(30, 1), True, HELD),
        ("done", receipt(30, 2, "ffffffff"), True, HELD),
        ("done", receipt(15), False, None),
        ("done", receipt(40), False, BACK._replace(done=True)),
        ("done", receipt(20), False, DONE),
        ("done", receipt(10), False, None),
        ("done", receipt(50, 0), True, BLOCKED),
        ("done", receipt(60), True, None),
        ("release", receipt(30, 2), False, HELD._replace(until_ms=None)),
        ("release", receipt(20), True, DONE),
        ("release", receipt(10), True, None),
        ("reject", receipt(30, 2), False, HELD),
        ("reject", receipt(20), False, DONE),
        ("extend", receipt(30, 2), False, HELD._replace(until_ms=NOW + 9)),
        ("extend", receipt(15), False, SharedMessage(15, 1, NOW + 9)),
        ("extend", receipt(40), True, BACK),
    ],
)
def test_a_receipt_counts_while_no_other_worker_has_the_message(
    verb: str, of: str, is_late: bool, then: SharedMessage | None
) -> None:
    """Also when its lease is over. A repetition is not late. A rejected message is done after its letter."""
    settled = shared.apply_receipts(WINDOW, Settlement(**{verb: [of]}), TAG, NOW + 9)
    assert settled.late == ([of] if is_late else [])
    after = {each.end: each for each in settled.window.messages}.get(int(of.partition("-")[0], 16))
    assert after == then
    assert [each.end for each in settled.rejected] == (
        [30] if (verb, is_late, then) == ("reject", False, HELD) else []
    )


def test_an_answer_has_a_megabyte_or_one_larger_message() -> None:
    half, most = shared.TAKEN_BYTES // 2, shared.TAKEN_BYTES

    def ends(*sizes: int) -> list[int]:
        found = [Found(10 + n, size) for n, size in enumerate(sizes, 1)]
        _, taken = shared.give(Window("inc", 10), found, range(10, 99), now_ms=NOW, until_ms=NOW + 1, most=9)
        return [each.end - 10 for each in taken]

    assert ends(half, half, 1) == [1, 2]
    assert ends(3 * most, 1) == [1]


def test_a_message_that_compaction_has_removed_is_done() -> None:
    window = Window("inc", 10, (SharedMessage(20), SharedMessage(30)))
    later, taken = shared.give(window, [Found(30, 9)], range(10, 30), now_ms=NOW, until_ms=NOW + 1, most=9)
    assert (later.committed, [each.end for each in taken]) == (20, [30])


@pytest.mark.parametrize(
    ("messages", "start"),
    [
        ([], 10),
        ([HELD], 30),
        ([DONE, BACK], 20),
        ([SharedMessage(20, 1, NOW + 1, key=3), SharedMessage(30, key=3), SharedMessage(40, key=4)], 30),
        ([SharedMessage(n, 1, NOW + 1) for n in range(11, 11 + shared.WINDOW)], None),
    ],
)
def test_a_read_begins_at_the_first_message_that_may_be_given(
    messages: list[SharedMessage], start: int | None
) -> None:
    """Not at one that waits for its key: its page might have nothing else. A full window reads nothing."""
    assert shared.read_from(Window("inc", 10, tuple(messages)), NOW) == start


@pytest.mark.parametrize(("messages", "most_bytes"), [(100, 500), (1_000, 4_500)])
def test_a_state_with_messages_under_way_is_small(messages: int, most_bytes: int) -> None:
    """Of 200 to 300 bytes each, given by tens: docs/subscriptions.md has the price of it."""
    rows = [
        SharedMessage(n * 250 + n * n % 50, 1, NOW + LEASE + n // 10 * 37) for n in range(1, messages + 1)
    ]
    assert len(shared.encode_window(Window("inc", 0, tuple(rows)))) < most_bytes


class Sharing(stateful.RuleBasedStateMachine):
    """Workers that take, are done, late, repeat themselves, or die with what they were given; a stream that
    grows, is trimmed, compacted, or created anew. A window of 8, and a page of 5 messages."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(shared, "WINDOW", 8)
        self.now_ms, self.window, self.life = NOW, Window("", 0), 0
        self.receipts, self.last = list[str](), Settlement()
        self.create_anew()

    @stateful.rule()
    def create_anew(self) -> None:
        self.life, self.retained, self.end = self.life + 1, 0, 0
        #: By end: the messages that exist, those that need no worker, the last receipt and its lease.
        self.stream, self.gone = dict[int, Found](), set[int]()
        self.held, self.leases = dict[int, str](), dict[int, int]()
        self.keys = dict[int, int]()

    @property
    def tag(self) -> str:
        return shared.make_tag("sub", str(self.life))

    @stateful.rule(keys=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def append(self, keys: list[int]) -> None:
        for key in keys:
            self.end += 7 + key
            self.stream[self.end] = Found(self.end, 7 + key, key)
            self.keys[self.end] = key

    @stateful.rule(at=st.integers(0, 20))
    def remove_by_compaction(self, at: int) -> None:
        ends = sorted(self.stream)[:-1]  # The last message stays.
        if at < len(ends):
            self.gone.add(ends[at])
            del self.stream[ends[at]]

    @stateful.rule(at=st.integers(0, 4))
    def trim(self, at: int) -> None:
        ends = sorted(self.stream)[: at + 1]
        if ends:
            self.retained = ends[-1]
            self.gone |= {end for end in self.keys if end <= self.retained}
            self.stream = {end: each for end, each in self.stream.items() if end > self.retained}

    @stateful.rule(ms=st.sampled_from([1, LEASE // 2, LEASE, 3 * LEASE]))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @stateful.rule(
        data=st.data(),
        most=st.integers(0, 6),
        lease_ms=st.sampled_from([1, LEASE, 2 * LEASE]),
        dies=st.booleans(),
    )
    def take(self, data: st.DataObject, most: int, lease_ms: int, dies: bool) -> None:
        some = st.lists(st.sampled_from(self.receipts), max_size=4) if self.receipts else st.just([])
        self.last = Settlement(*(data.draw(some) for _ in Settlement._fields))
        self.step(self.last, most, lease_ms, dies=dies)

    @stateful.rule(most=st.integers(0, 6))
    def repeat_the_last_request(self, most: int) -> None:
        self.step(self.last, most, LEASE)

    def step(self, asked: Settlement, most: int, lease_ms: int, *, dies: bool = False) -> list[str]:
        """As `takes.take_now`, on a state that was stored in between."""
        until_ms = self.now_ms + lease_ms
        window = shared.decode_window(
            self.window.stream_incarnation, self.window.committed, shared.encode_window(self.window)
        )
        assert window == self.window
        window = shared.fit(window, str(self.life), self.retained)
        settled = shared.apply_receipts(window, asked, self.tag, until_ms)
        window = shared.end_attempts(settled.window, {each.end for each in settled.rejected}, ())
        self.check_settled(asked, settled, until_ms)
        new = list[str]()
        if most and (start := shared.read_from(window, self.now_ms)) is not None:
            page = [self.stream[end] for end in sorted(self.stream) if end > start][:5]
            read = range(start, page[-1].end if page else start)
            window, given_now = shared.give(
                window, page, read, now_ms=self.now_ms, until_ms=until_ms, most=most
            )
            assert len(given_now) <= most
            for message in given_now:
                self.check_given(message)
                self.held[message.end] = shared.make_receipt(message, self.tag)
                self.leases[message.end] = until_ms
                new.append(self.held[message.end])
        self.window = window
        if not dies:
            self.receipts += new
        return new

    def check_settled(self, asked: Settlement, settled: shared.Settled, until_ms: int) -> None:
        """Only the last receipt of a message settles it."""
        named = [each for receipts in asked for each in receipts]
        for verb, receipts in asked._asdict().items():
            for each in receipts:
                end = int(each.partition("-")[0], 16)
                holds = each == self.held.get(end) and each.endswith(self.tag) and end not in self.gone
                if holds and verb != "extend" and named.count(each) == 1:
                    assert each not in settled.late
                if not holds:
                    continue
                if verb in {"done", "reject"}:
                    self.gone.add(end)
                elif verb == "release":
                    self.leases.pop(end, None)
                elif end in self.leases:
                    self.leases[end] = until_ms

    def check_given(self, message: SharedMessage) -> None:
        assert message.end not in self.gone
        assert self.leases.get(message.end, 0) <= self.now_ms, "under two leases at once"
        key = self.keys[message.end]
        earlier = {end for end, each in self.keys.items() if key and each == key and end < message.end}
        assert earlier <= self.gone, "out of the order of its key"

    @stateful.invariant()
    def only_what_is_done_is_committed(self) -> None:
        assert len(self.window.messages) <= 8
        if self.window.stream_incarnation == str(self.life):
            passed = {end for end in self.keys if end <= self.window.committed}
            assert passed | {each.end for each in self.window.messages if each.done} <= self.gone

    def teardown(self) -> None:
        """A diligent worker finds all that is left."""
        for _ in range(3 * len(self.keys) + 8):
            self.now_ms += 3 * LEASE
            self.step(Settlement(done=self.step(Settlement(), 6, LEASE)), 0, LEASE)
        assert set(self.keys) <= self.gone
        assert not self.window.messages
        self.patch.undo()


TestSharing = pytest.mark.slow(Sharing.TestCase)
TestSharing.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
