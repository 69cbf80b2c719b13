"""What is fuzzed, and the rules that every exchange is held to."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.answers import Answer
from tidemark.http.requests import plain_name
from tidemark.janitor.sweep import sweep
from tidemark.protocol.errors import ProtocolError, RetentionGone
from tidemark.protocol.expiry import NEVER
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey, parse_bucket_stream, parse_plain_path
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.stores import Stores

#: Before each round of packing.
APPENDS: Final = 3
CHANGING: Final = frozenset({"PUT", "POST", "DELETE"})


def play(run: Callable[..., None], examples: int, first_seed: int, *strategies: SearchStrategy[Any]) -> None:
    """Calls `run` with so many examples of the strategies: the same ones for the same seed."""
    asked = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    seed(first_seed)(asked(given(*strategies)(run)))()


@dataclass(frozen=True, slots=True)
class State:
    """All that a client can learn of a stream."""

    incarnation: str
    content_type: str
    closed: bool
    tail: int
    data: bytes
    may_expire: bool


@dataclass(slots=True)
class Subject:
    """`stores` looks at storage beside the requests, without anything remembered. It also packs the
    stream that was changed, once `append` has added something to it, and nothing may look different."""

    stores: Stores
    statuses: Counter[int] = field(default_factory=Counter)
    packs: int = 0
    #: An append to a path, by the server that is fuzzed: of a content type and a body. Its status.
    append: Callable[[str, str, bytes], int] | None = None
    _states: dict[StreamKey, State | None] = field(default_factory=dict)

    def exchange(self, method: str, path: str, *, encoded: bool, ask: Callable[[], Answer]) -> Answer:
        """One request, with what it named looked at before and after."""
        key = key_of(path, encoded=encoded)
        before = self._before(key) if key else None
        answer = ask()
        self.statuses[answer.status] += 1
        assert answer.status < 500, (method, path, answer)
        if key is not None:
            after = self._states[key] = self.look(key)
            check_change(method, answer, before, after)
            if answer.status < 300 and method in CHANGING and is_stream(path, encoded=encoded):
                check_acknowledged(method, answer.headers, after)
                self._pack(key)
        return answer

    def _pack(self, key: StreamKey) -> None:
        state = self._states[key]
        if self.append is None or state is None or state.closed or state.may_expire:
            return
        body, stored = (b"[1]", b"1,") if state.content_type == "application/json" else (b"x", b"x")
        for _ in range(APPENDS):
            assert self.append(plain_path(key), state.content_type, body) == 204
        self.packs += sweep(self.stores, removes=False).packed
        after = self._states[key] = self.look(key)
        assert after is not None
        assert after.tail == state.tail + APPENDS * len(stored)
        assert after.data == state.data + APPENDS * stored

    def _before(self, key: StreamKey) -> State | None:
        """What it was after the last request to it: nobody else is there."""
        if key not in self._states:
            self._states[key] = self.look(key)
        return self._states[key]

    def look(self, key: StreamKey) -> State | None:
        self.stores.tails.forget(key)
        try:
            known = load_head(self.stores, key)
            base = known.record.base
            data = self._read(key, base) if known.tail.offset > base else b""
        except ProtocolError:
            return None
        record = known.record
        return State(
            record.incarnation,
            record.content_type.value,
            known.tail.closed,
            known.tail.offset,
            data,
            may_expire=record.expiry != NEVER,
        )

    def _read(self, key: StreamKey, start: int) -> bytes:
        """From where it is retained."""
        try:
            return read(self.stores, key, start).data
        except RetentionGone as gone:
            retained = int(gone.headers["Stream-Next-Offset"])
            return b"%d:" % retained + read(self.stores, key, retained).data


def key_of(path: str, *, encoded: bool) -> StreamKey | None:
    """Of the stream itself, or of what hangs below it, on either surface."""
    try:
        name = plain_name(path)
        if name is not None:
            return parse_plain_path(name, encoded=encoded)
        # What hangs below it is the third segment and the rest.
        place = "/".join(path.split("/")[1:3])
        return parse_bucket_stream(place, encoded=encoded)
    except ProtocolError:
        return None


def plain_path(key: StreamKey) -> str:
    name = quote(key.stream_id, safe="/")
    return f"/v1/stream/{name}" if key.bucket == PLAIN_BUCKET else f"/{key.bucket}/{name}"


def is_stream(path: str, *, encoded: bool) -> bool:
    if plain_name(path) is not None:
        return True
    return parse_bucket_stream(path.removeprefix("/"), encoded=encoded) is not None


def check_change(method: str, answer: Answer, before: State | None, after: State | None) -> None:
    acknowledged = method in CHANGING and 200 <= answer.status < 300
    has_expired = before is not None and before.may_expire and after is None
    if before != after and not has_expired:
        assert acknowledged, (method, answer, before, after)


def check_acknowledged(method: str, headers: Mapping[str, str], after: State | None) -> None:
    """What was promised is there. A stream of no lifetime may be gone already."""
    if method == "DELETE":
        assert after is None
    elif after is not None:
        promised = int(headers["stream-next-offset"])
        assert promised <= after.tail, (headers, after)
