"""The judge: pure checks over what writers and readers recorded, and the final state of each stream."""

import math
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.recording import (
    Append,
    Outcome,
    Page,
    Recordings,
    StreamHistory,
    Violation,
    message_id,
    read_message,
)

LOST, DOUBLED, MISORDERED = "lost", "doubled", "misordered"
WRONG_OFFSET, TORN, FOREIGN = "wrong offset", "torn append", "foreign message"
REFUSED_PRESENT, TAIL_DIFFERS, STALE = "refused, yet present", "tail differs from catch-up", "stale read"
GAP = "gap in a page"


@dataclass(slots=True)
class Entry:
    """A message of the final log and the offset at which it ends."""

    writer: str
    number: int
    part: int
    end: int


def judge(recordings: Recordings) -> list[Violation]:
    of_streams = (each for history in recordings.histories for each in judge_stream(history))
    return [*recordings.violations, *of_streams]


def judge_stream(history: StreamHistory) -> list[Violation]:
    """Everything that can be said of one incarnation of a stream once its log is known."""
    if history.unread:
        return list(_all_lost(history))
    if history.log is None:
        return []
    if not history.log.startswith(history.inherited):
        return [Violation(FOREIGN, history.name, "it does not begin with what it was forked from")]
    entries, violations = _read_log(history)
    violations += _check_presence(history, entries)
    violations += _check_writers_order(history, entries)
    violations += _check_real_time(history, entries)
    violations += [each for page in history.pages for each in _check_page(history, page)]
    return violations


def _all_lost(history: StreamHistory) -> Iterator[Violation]:
    """What cannot be read counts as lost."""
    for append in history.appends:
        if append.outcome is Outcome.ACKNOWLEDGED:
            text = f"{append.writer}:{append.number} was acknowledged, and the stream cannot be read"
            yield Violation(LOST, history.name, text)


def _read_log(history: StreamHistory) -> tuple[list[Entry], list[Violation]]:
    assert history.log is not None
    entries: list[Entry] = []
    violations: list[Violation] = []
    rest = history.log[len(history.inherited) :]
    end = history.base + len(history.inherited)
    for message in rest.split(b",")[:-1]:
        end += len(message) + 1
        try:
            entries.append(Entry(*read_message(message), end))
        except ValueError:
            text = f"unreadable message {message[:80]!r} before {end}"
            violations.append(Violation(FOREIGN, history.name, text))
    return entries, violations


def _check_presence(history: StreamHistory, entries: Sequence[Entry]) -> Iterator[Violation]:
    """Each acknowledged append once, whole, where its answer said; a refused one not at all."""
    appends = {(append.writer, append.number): append for append in history.appends}
    parts: Counter[tuple[str, int, int]] = Counter()
    ends: dict[tuple[str, int], int] = {}
    for entry in entries:
        name = message_id(entry.writer, entry.number, entry.part)
        append = appends.get((entry.writer, entry.number))
        if append is None or entry.part >= append.messages:
            yield Violation(FOREIGN, history.name, f"{name} before {entry.end} was never sent to this stream")
            continue
        parts[entry.writer, entry.number, entry.part] += 1
        ends.setdefault((entry.writer, entry.number), 0)
        if entry.part == append.messages - 1 and parts[entry.writer, entry.number, entry.part] == 1:
            ends[entry.writer, entry.number] = entry.end
    for key, append in appends.items():
        yield from _check_append(history, append, [parts[(*key, part)] for part in range(append.messages)])
        yield from _check_offset(history, append, ends.get(key))


def _check_append(history: StreamHistory, append: Append, times: Sequence[int]) -> Iterator[Violation]:
    name = f"{append.writer}:{append.number}"
    if append.outcome is Outcome.REFUSED and any(times):
        yield Violation(REFUSED_PRESENT, history.name, f"{name} was refused and is in the log")
    elif append.outcome is Outcome.ACKNOWLEDGED and not any(times):
        text = f"{name} was acknowledged with offset {append.end} and is not there"
        yield Violation(LOST, history.name, text)
    elif max(times) > 1:
        yield Violation(DOUBLED, history.name, f"{name} is in the log {max(times)} times")
    elif any(times) and not all(times):
        kind = LOST if append.outcome is Outcome.ACKNOWLEDGED else TORN
        yield Violation(kind, history.name, f"{name}: {sum(times)} of {len(times)} messages are there")


def _check_offset(history: StreamHistory, append: Append, end: int | None) -> Iterator[Violation]:
    if end is None or append.outcome is not Outcome.ACKNOWLEDGED or append.end < 0:
        return
    if append.end != end and (append.exact or append.end < end):
        text = f"{append.writer}:{append.number} was answered with {append.end} and ends at {end}"
        yield Violation(WRONG_OFFSET, history.name, text)


def _check_writers_order(history: StreamHistory, entries: Sequence[Entry]) -> Iterator[Violation]:
    """A writer's appends are in the order in which it sent them, and an append's messages are side by side.
    An append that was never answered may come later, except from a strict writer."""
    acknowledged = {
        (append.writer, append.number) for append in history.appends if append.outcome is Outcome.ACKNOWLEDGED
    }
    last: dict[str, int] = {}
    before: Entry | None = None
    for entry in entries:
        if entry.part and (
            before is None
            or (before.writer, before.number, before.part + 1) != (entry.writer, entry.number, entry.part)
        ):
            name = message_id(entry.writer, entry.number, entry.part)
            yield Violation(TORN, history.name, f"{name} is not behind the message before it")
        before = entry
        if entry.writer not in history.strict and (entry.writer, entry.number) not in acknowledged:
            continue
        if entry.number < last.get(entry.writer, -1):
            text = f"{entry.writer}:{entry.number} is behind {entry.writer}:{last[entry.writer]}"
            yield Violation(MISORDERED, history.name, text)
        last[entry.writer] = max(entry.number, last.get(entry.writer, -1))


def _check_real_time(history: StreamHistory, entries: Sequence[Entry]) -> Iterator[Violation]:
    """An append that was acknowledged before another was sent lies before it."""
    appends = {(append.writer, append.number): append for append in history.appends}
    earliest, first = math.inf, ""
    for entry in reversed(entries):
        append = appends.get((entry.writer, entry.number))
        if append is None:
            continue
        if earliest < append.sent:
            text = f"{append.writer}:{append.number} is before {first}, acknowledged before it was sent"
            yield Violation(MISORDERED, history.name, text)
        if append.outcome is Outcome.ACKNOWLEDGED and append.answered < earliest:
            earliest, first = append.answered, f"{append.writer}:{append.number}"


def _check_page(history: StreamHistory, page: Page) -> Iterator[Violation]:
    assert history.log is not None
    if page.size != page.end - page.start:
        text = f"{page.reader} was given {page.size} bytes, and was told {page.start}–{page.end}"
        yield Violation(GAP, history.name, text)
    if page.end > history.base + len(history.log):
        text = f"{page.reader} was given {page.start}–{page.end}, behind the end of the log"
        yield Violation(TAIL_DIFFERS, history.name, text)
    elif page.start >= history.base:
        given = history.log[page.start - history.base : page.end - history.base]
        if zlib.crc32(given) != page.checksum:
            text = f"{page.reader} was given other bytes for {page.start}–{page.end} than the final catch-up"
            yield Violation(TAIL_DIFFERS, history.name, text)
    if page.up_to_date and page.end < page.known_end:
        text = f"{page.reader} was told that {page.end} is the tail; {page.known_end} had been acknowledged"
        yield Violation(STALE, history.name, text)
