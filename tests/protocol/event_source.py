"""A reader of event streams, after the WHATWG algorithm and nothing else.

https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

import re
from dataclasses import dataclass, field

_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Event:
    type: str
    data: str
    last_id: str = field(default="", compare=False)


@dataclass(slots=True)
class _Reader:
    events: list[Event] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    last_id: str = ""
    _type: str = ""
    _data: list[str] = field(default_factory=list)

    def line(self, line: str) -> None:
        if not line:
            self._dispatch()
        elif line.startswith(":"):
            self.comments.append(line[1:])
        else:
            name, _, value = line.partition(":")
            self._field(name, value.removeprefix(" "))

    def _field(self, name: str, value: str) -> None:
        if name == "event":
            self._type = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self.last_id = value

    def _dispatch(self) -> None:
        """Each line of data ends with a newline, of which the last is taken away again."""
        if self._data:
            self.events.append(Event(self._type or "message", "\n".join(self._data), self.last_id))
        self._type, self._data = "", []


def _read(stream: bytes) -> _Reader:
    """What follows the last line end is an unfinished line: a reader has not seen it yet."""
    reader = _Reader()
    for line in _LINE_END.split(stream.decode("utf-8", "replace").removeprefix("\ufeff"))[:-1]:
        reader.line(line)
    return reader


def parse_events(stream: bytes) -> list[Event]:
    """The events dispatched so far; one without its blank line is not."""
    return _read(stream).events


def parse_comments(stream: bytes) -> list[str]:
    return _read(stream).comments
