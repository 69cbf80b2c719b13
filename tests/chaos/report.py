"""What a campaign says while it runs, and at its end."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.chaos.judge import DOUBLED, LOST, MISORDERED
from tests.chaos.proxy import Event
from tests.chaos.recording import Recordings, Violation

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Totals:
    """`harmed` are requests that a fault of a connection has hit."""

    acknowledged: int
    messages: int
    faults: int
    harmed: int
    seconds: float


def progress_line(totals: Totals, left: str) -> str:
    rate = totals.acknowledged / max(totals.seconds, 0.001)
    return (
        f"{totals.seconds:5.0f} s: {totals.acknowledged} acknowledged ({rate:.0f}/s),"
        f" {totals.messages} messages, {totals.faults} faults, {totals.harmed} requests harmed; {left}"
    )


def verdict_line(acknowledged: int, violations: Sequence[Violation]) -> str:
    found = Counter(violation.kind for violation in violations)
    counts = (f"{found[kind]} {kind}" for kind in (LOST, DOUBLED, MISORDERED))
    return f"{acknowledged} acknowledged, {', '.join(counts)}"


def final_table(
    totals: Totals, faults: Counter[str], recordings: Recordings, violations: Sequence[Violation]
) -> str:
    streams = sum(history.log is not None for history in recordings.histories)
    pages = sum(len(history.pages) for history in recordings.histories if history.log is not None)
    rows = [
        ("acknowledged appends", totals.acknowledged),
        ("messages in them", totals.messages),
        ("appends a second", round(totals.acknowledged / max(totals.seconds, 0.001))),
        ("streams judged", streams),
        ("streams left, because an outcome was not known", len(recordings.histories) - streams),
        ("pages compared with the final catch-up", pages),
        ("snapshots, listings compared", recordings.compared),
        ("requests harmed", totals.harmed),
        *((f"fault: {name}", count) for name, count in sorted(faults.items())),
        *(
            (f"VIOLATION: {name}", count)
            for name, count in sorted(Counter(v.kind for v in violations).items())
        ),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {count:>9,}" for name, count in rows)


def answers_line(counts: Counter[str]) -> str:
    """How often each request of those who do one thing after another got which answer."""
    return "answers: " + ", ".join(f"{name} × {count}" for name, count in sorted(counts.items()))


def violation_lines(violations: Sequence[Violation]) -> list[str]:
    """The first few of each kind."""
    lines = []
    for kind in sorted({violation.kind for violation in violations}):
        these = [violation for violation in violations if violation.kind == kind]
        lines += [f"{kind}: {each.stream}: {each.text}" for each in these[:_SHOWN]]
        if len(these) > _SHOWN:
            lines.append(f"{kind}: and {len(these) - _SHOWN} more")
    return lines


def keep(
    folder: Path,
    recordings: Recordings,
    events: Sequence[Event],
    violations: Sequence[Violation],
    began: float,
) -> None:
    """Everything that is needed to find out why, beside the logs that are in the folder already."""
    with (folder / "recordings.pickle").open("wb") as file:
        pickle.dump(recordings, file)
    with (folder / "faults.jsonl").open("w") as file:
        for event in events:
            file.write(json.dumps(asdict(event) | {"at": round(event.at - began, 3)}) + "\n")
    texts = [f"{violation.kind}: {violation.stream}: {violation.text}\n" for violation in violations]
    (folder / "violations.txt").write_text("".join(texts))
