"""What a campaign says while it runs, and at its end."""

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

    @property
    def rate(self) -> int:
        return round(self.acknowledged / max(self.seconds, 0.001))


def progress_line(totals: Totals, left: str) -> str:
    return (
        f"{totals.seconds:5.0f} s: {totals.acknowledged} acknowledged ({totals.rate}/s),"
        f" {totals.messages} messages, {totals.faults} faults, {totals.harmed} requests harmed; {left}"
    )


def final_table(
    totals: Totals, faults: Counter[str], recordings: Recordings, violations: Sequence[Violation]
) -> str:
    judged = [history for history in recordings.histories if history.log is not None]
    wrong = Counter(violation.kind for violation in violations)
    rows = {
        "acknowledged appends": totals.acknowledged,
        "messages in them": totals.messages,
        "appends a second": totals.rate,
        "streams judged": len(judged),
        "streams left, because an outcome was not known": len(recordings.histories) - len(judged),
        "pages compared with the final catch-up": sum(len(history.pages) for history in judged),
        "snapshots, listings compared": recordings.compared,
        "requests harmed": totals.harmed,
    }
    rows |= {f"fault: {name}": count for name, count in sorted(faults.items())}
    rows |= {f"VIOLATION: {kind}": count for kind, count in sorted(wrong.items())}
    width = max(map(len, rows))
    return "\n".join(f"{name:{width}}  {count:>9,}" for name, count in rows.items())


def verdict_lines(acknowledged: int, violations: Sequence[Violation]) -> list[str]:
    """The first few violations of each kind, and last what everybody wants to know."""
    lines, found = list[str](), Counter(violation.kind for violation in violations)
    for kind in sorted(found):
        these = [violation for violation in violations if violation.kind == kind]
        lines += [f"{kind}: {each.stream}: {each.text}" for each in these[:_SHOWN]]
        if len(these) > _SHOWN:
            lines.append(f"{kind}: and {len(these) - _SHOWN} more")
    counts = ", ".join(f"{found[kind]} {kind}" for kind in (LOST, DOUBLED, MISORDERED))
    return [*lines, f"{acknowledged} acknowledged, {counts}"]


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
    told = (asdict(event) | {"at": round(event.at - began, 3)} for event in events)
    (folder / "faults.jsonl").write_text("".join(json.dumps(event) + "\n" for event in told))
    texts = [f"{violation.kind}: {violation.stream}: {violation.text}\n" for violation in violations]
    (folder / "violations.txt").write_text("".join(texts))
