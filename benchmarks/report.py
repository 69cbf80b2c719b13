"""The run as a Markdown table and as JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.contest import Contestant
from benchmarks.rows import Figure, Row
from tests.conformance.servers import node


@dataclass(frozen=True)
class Line:
    """One figure: the reference's median, and for each of ours (title, median, ratio)."""

    figure: Figure
    theirs: float | None
    ours: tuple[tuple[str, float | None, float | None], ...]


def lines_of(rows: Sequence[Row], ours: Sequence[Contestant], theirs: Contestant) -> list[Line]:
    return [line(row, figure, ours, theirs) for row in rows for figure in row.figures]


def line(row: Row, figure: Figure, ours: Sequence[Contestant], theirs: Contestant) -> Line:
    reference = theirs.median(row, figure.key)
    columns = []
    for contestant in ours:
        value = contestant.median(row, figure.key)
        ratio = None if value is None or reference is None else figure.ratio(value, reference)
        columns.append((contestant.title, value, ratio))
    return Line(figure, reference, tuple(columns))


def markdown(lines: Sequence[Line], ours: Sequence[Contestant], theirs: Contestant, repeats: int) -> str:
    head = ["", "unit", theirs.title]
    for contestant in ours:
        head += [contestant.title, "ratio", "to reach"]
    table = [cells(head), cells(["---", "---", *["---:"] * (len(head) - 2)])]
    table += [cells(row_cells(each)) for each in lines]
    return "\n".join([machine(), "", explanation(repeats), "", *table, "", *failures_of([*ours, theirs])])


def failures_of(contestants: Sequence[Contestant]) -> list[str]:
    """Repeats that are missing from the medians."""
    return [f"- Failed: {each.title}: {failure}" for each in contestants for failure in each.failures]


def row_cells(line: Line) -> list[str]:
    row = [line.figure.label, line.figure.unit, shown(line.theirs)]
    for _, value, ratio in line.ours:
        row += [shown(value), shown(ratio), verdict(ratio, line.figure.target)]
    return row


def verdict(ratio: float | None, target: float) -> str:
    if ratio is None:
        return "not measured"
    return f"{target:g} ✓" if ratio >= target else f"**{target:g} ✗**"


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cells(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


def explanation(repeats: int) -> str:
    return (
        f"Medians of {repeats}, taken in turn; only the server under load runs, the others are paused. A "
        "ratio over 1 is better than the reference server. Waking and delivery count from the moment the "
        "append is sent. The reference server keeps its streams in files and syncs every append."
    )


def machine() -> str:
    run = subprocess.run([node(), "--version"], capture_output=True, text=True, check=True)
    versions = f"Python {platform.python_version()}, Node {run.stdout.strip()}"
    return f"{os.cpu_count()} cores shared by server and load; {versions}."


def as_json(lines: Sequence[Line], contestants: Sequence[Contestant], repeats: int) -> str:
    content = {
        "machine": machine(),
        "repeats": repeats,
        "figures": [
            {
                "label": each.figure.label,
                "unit": each.figure.unit,
                "target": each.figure.target,
                "reference": each.theirs,
                "ours": {title: {"median": value, "ratio": ratio} for title, value, ratio in each.ours},
            }
            for each in lines
        ],
        "measures": {each.title: each.measures for each in contestants},
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
