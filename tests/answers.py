"""An answer to a request, as tests compare it. A failing test shows the last ones (`tests/conftest.py`)."""

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from tests.protocol.event_source import Event, parse_events

#: Requests with their answers: the last of the test that runs.
LAST: Final = deque[str](maxlen=4)
_SHOWN_BYTES: Final = 2000


@dataclass(frozen=True, slots=True)
class Answer:
    """Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes
    #: `Server-Timing` says something of the moment, and so is no part of what is compared.
    timing: str = field(default="", compare=False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        text: str = self.json["error"]
        return text

    @property
    def events(self) -> list[Event]:
        return parse_events(self.body)

    def __getitem__(self, name: str) -> str | None:
        return self.headers.get(name.lower())

    @property
    def next_offset(self) -> str:
        return self.headers["stream-next-offset"]


def shown(method: str, target: str, headers: object, body: object, answer: Answer) -> Answer:
    """The answer, which is shown with its request if the test fails."""
    sent, got = (str(each)[:_SHOWN_BYTES] for each in (body, answer.body))
    LAST.append(f"{method} {target}\n  {headers}\n  {sent}\n{answer.status}\n  {answer.headers}\n  {got}")
    return answer
