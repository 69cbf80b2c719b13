"""The output of the commands: JSON, lines for programs, or columns on a terminal."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, Self

import click

#: Control characters except the tab and the end of a line: C0, DEL, and C1 in UTF-8.
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
#: The same in a name, and characters that change the direction of text.
_HIDDEN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
#: Rows that set the widths of columns, so that a long listing begins at once.
_ALIGNED_ROWS: Final = 100
_REDRAWN_SECONDS: Final = 0.2


def as_json() -> bool:
    return bool(click.get_current_context().meta["as_json"])


def show(value: Any, text: str) -> None:
    """Print the result as JSON, or as a line for people. A name must not steer a terminal either."""
    if as_json():
        text = json.dumps(value, ensure_ascii=sys.stdout.encoding.lower() not in {"utf-8", "utf8"})
    click.echo(visible(text) if sys.stdout.isatty() else text)


def visible(text: str) -> str:
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def visible_bytes(data: bytes) -> bytes:
    """Replace control characters: a message must not move the cursor or set the window title."""
    return _CONTROL.sub(
        lambda control: "".join(f"\\x{ord(each):02x}" for each in control[0].decode()).encode(), data
    )


class ProgressLine:
    """A line on a terminal that changes during the block, and is cleared at its end. Written to standard
    error; nothing if that is no terminal."""

    def __init__(self, *, is_shown: bool = True) -> None:
        self._is_shown, self._next = is_shown and sys.stderr.isatty(), 0.0
        self._began, self.count, self._bytes = time.monotonic(), 0, 0

    def add(self, done: str, size_bytes: int = 0) -> None:
        self.count, self._bytes = self.count + 1, self._bytes + size_bytes
        self.show(f"{self.count:,} {done}", self._bytes)

    def show(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show the text, and with `done` that number of bytes, of `total` if known, and their rate."""
        now = time.monotonic()
        if not self._is_shown or now < self._next:
            return
        self._next = now + _REDRAWN_SECONDS
        if done:
            of_total = f" of {size(total)}" if total else ""
            text += f", {size(done)}{of_total}, {size(done / max(now - self._began, 0.001))}/s"
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._next:
            click.echo("\r\x1b[K", nl=False, err=True)


def show_rows(
    rows: Iterable[dict[str, Any]],
    header: Sequence[str],
    cells: Callable[[dict[str, Any], Callable[[int], str], Callable[[int], str]], Sequence[str]],
) -> None:
    """Print columns with a header on a terminal, plain cells elsewhere, or JSON. `cells` gets a row and the
    functions that format a size and a time."""
    if as_json() or not sys.stdout.isatty():
        for row in rows:
            show(row, "  ".join(cells(row, "{} bytes".format, instant)))
        return
    for text in columns(header, (cells(row, size, ago) for row in rows)):
        click.echo(text)


def columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield aligned lines."""
    remaining, widths = iter(rows), [0] * len(header)
    title: list[Sequence[str]] = [header]
    while page := [[visible(cell) for cell in row] for row in islice(remaining, _ALIGNED_ROWS)]:
        found = zip(widths, *title, *page, strict=True)
        widths = [max(width, *map(len, cells)) for width, *cells in found]
        for row in [*title, *page]:
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            yield "  ".join(padded).rstrip()
        title = []


def described(values: Mapping[str, Any]) -> str:
    """Return a line for each value, and for each member of a list."""
    lines = []
    for name, value in values.items():
        title, members = name.removesuffix("_ms"), value if isinstance(value, list) and value else [value]
        lines += [f"{title if n == 0 else '':17} {_plain(name, each)}" for n, each in enumerate(members)]
    return "\n".join(lines)


def _plain(name: str, value: Any) -> str:
    if value is None or value == []:
        return "-"
    if isinstance(value, dict):
        return "  ".join(f"{key.removesuffix('_ms')} {_plain(key, each)}" for key, each in value.items())
    if name.endswith("_at_ms"):
        return instant(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def instant(ms: int) -> str:
    if ms >= 253_402_300_800_000:
        return "after the year 9999"
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def ago(ms: int) -> str:
    """Return the age of a time, in one unit."""
    seconds = max(0.0, time.time() - ms / 1000)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def size(count: float) -> str:
    """Return a size in bytes, in the unit that leaves up to four digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
