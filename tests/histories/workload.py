"""What the clients of a history ask for: chosen by its seed, from what the clients have been told so far."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tests.histories import history

#: How often each kind of request is made, in each kind of history.
WEIGHTS: Final[dict[str, dict[str, int]]] = {
    "plain": {"append": 44, "read": 18, "head": 6, "create": 14, "delete": 8, "close": 4},
    "forks": {"append": 30, "read": 20, "head": 6, "create": 12, "fork": 16, "delete": 14, "close": 2},
    "expiry": {"append": 34, "read": 18, "head": 10, "create": 18, "delete": 6, "fork": 6, "close": 2},
    "snapshots": {"append": 36, "read": 14, "create": 12, "delete": 6, "publish": 14, "snapshot": 10},
    "buckets": {"append": 24, "read": 12, "head": 4, "create": 18, "delete": 14, "bucket": 24},
}
#: Only where it is asked for: almost every append is a producer's, and names the stream that all write to.
PRODUCERS: Final = "producers"
_PRODUCERS: Final = {"append": 92, "read": 6, "create": 1, "delete": 1}
#: Only where it is asked for: streams let go of their beginning, told to or by a limit.
RETENTION: Final = "retention"
_RETENTION: Final = {
    "append": 36,
    "read": 18,
    "head": 2,
    "create": 12,
    "fork": 16,
    "delete": 7,
    "trim": 16,
    "publish": 4,
    "snapshot": 2,
    "close": 1,
}
#: Only where it is asked for: every second append creates its stream if that is missing.
FIRST_APPENDS: Final = "first appends"
_FIRST_APPENDS: Final = {
    "append": 52,
    "read": 18,
    "head": 2,
    "create": 4,
    "fork": 6,
    "delete": 16,
    "close": 2,
}
#: What a limited stream keeps: few appends.
KEEP_BYTES: Final = 12
_NAMES: Final = {"buckets": ("kk/a", "kk/b")}
TTL_SECONDS: Final = 40
#: Longer than what the simulation stores in the table.
_LONG: Final = b"~" * 40


@dataclass(slots=True)
class _Writer:
    """One client as an idempotent producer of one stream. `pending` was sent and not answered."""

    epoch: int = 0
    next_seq: int = 0
    pending: tuple[history.Claim, bytes, bool] | None = None


class Workload:
    """Requests for one history. `long_bodies` lie in S3 where the storage limit is lowered."""

    def __init__(self, chance: random.Random, kind: str, names: int) -> None:
        self._chance = chance
        self._kind = kind
        self.names = _NAMES.get(kind, ("v1/a", "v1/b", "v1/c"))[:names]
        self.buckets = ("kk",) if kind == "buckets" else ()
        rare = {PRODUCERS: _PRODUCERS, RETENTION: _RETENTION, FIRST_APPENDS: _FIRST_APPENDS}
        self._weights = rare.get(kind) or WEIGHTS[kind]
        self._claims = 0.9 if kind == PRODUCERS else 0.4
        # Of a name that expires every client says so, or its PUT meets a conflict.
        self._ttl = {name: self._choose_ttl() for name in self.names}
        self._keep = {name: self._choose_limit() for name in self.names}
        self._tails: dict[str, list[int]] = {name: [0] for name in self.names}
        self._snapshots: dict[str, list[int]] = {name: [0] for name in self.names}
        self._writers: dict[tuple[int, str], _Writer] = {}
        self._bodies = 0

    def _choose_ttl(self) -> int | None:
        return (
            TTL_SECONDS if self._kind in {"expiry", FIRST_APPENDS} and self._chance.random() < 0.7 else None
        )

    def _choose_limit(self) -> int | None:
        return KEEP_BYTES if self._kind == RETENTION and self._chance.random() < 0.5 else None

    def first(self) -> list[history.Request]:
        """So that most histories begin with something."""
        made: list[history.Request] = [history.CreateBucket(bucket) for bucket in self.buckets]
        return made + [self._create(name) for name in self.names if self._chance.random() < 0.7]

    def next(self, client: int) -> history.Request:
        kinds = list(self._weights)
        kind = self._chance.choices(kinds, list(self._weights.values()))[0]
        name = self._chance.choice(self.names)
        make: dict[str, Callable[[], history.Request]] = {
            "append": lambda: self._created_by(self._append(client, name)),
            "close": lambda: history.Append(name, close=True),
            "read": lambda: history.Read(name, self._chance.choice([0, 0, 0, None, self._offset(name)])),
            "head": lambda: history.Head(name),
            "create": lambda: self._create(name),
            "fork": lambda: self._fork(name),
            "delete": lambda: history.Delete(name),
            "publish": lambda: history.Publish(name, self._offset(name), self._body(client)),
            "trim": lambda: history.Trim(name, self._offset(name)),
            "snapshot": lambda: history.ReadSnapshot(name, self._chance.choice(self._snapshots[name][-2:])),
            "bucket": lambda: self._of_bucket(self._chance.choice(self.buckets)),
        }
        return make[kind]()

    def _append(self, client: int, name: str) -> history.Append:
        claims = self._chance.random() < self._claims
        return self._claimed(client, name) if claims else self.plain_append(client, name)

    def _created_by(self, append: history.Append) -> history.Append:
        if self._kind != FIRST_APPENDS or self._chance.random() < 0.5:
            return append
        name = append.name
        created = history.Create(name, ttl_seconds=self._ttl[name], keep_bytes=self._keep[name])
        return replace(append, creates=created)

    def plain_append(self, client: int, name: str) -> history.Append:
        lot, close = self._chance.random(), self._chance.random() < 0.04
        seq = f"{self._chance.randrange(40):02d}" if lot < 0.15 else None
        content_type = "text/plain" if lot > 0.97 else "application/octet-stream"
        return history.Append(name, self._body(client), close, seq, content_type=content_type)

    def _claimed(self, client: int, name: str) -> history.Append:
        """Most often the next one, or again the one that was not answered."""
        writer = self._writers.setdefault((client, name), _Writer())
        if writer.pending is not None and self._chance.random() < 0.8:
            claim, body, close = writer.pending
            return history.Append(name, body, close, claim=claim)
        lot = self._chance.random()
        epoch, seq = writer.epoch, writer.next_seq
        if lot < 0.06:
            epoch, seq = epoch + 1, 0
        elif lot < 0.1:
            epoch = max(0, epoch - 1)
        elif lot < 0.15:
            seq += 2
        elif lot < 0.25:
            seq = max(0, seq - 1)
        claim, close = (f"p{client}", epoch, seq), self._chance.random() < 0.04
        body = self._body(client)
        writer.pending = (claim, body, close)
        return history.Append(name, body, close, claim=claim)

    def learn(self, client: int, request: history.Request, answer: history.Answer | None) -> None:
        """What an answer says to the client that asked, and, as clients talk, to all."""
        if answer is None:
            return
        says_tail = answer.outcome in {"appended", "read", "head", "created", "exists"}
        if says_tail and isinstance(request, history.Append | history.Read | history.Head | history.Create):
            self._tails[request.name].append(answer.offset or 0)
        if isinstance(request, history.Publish) and answer.outcome == "published":
            self._snapshots[request.name].append(request.offset)
        if isinstance(request, history.Append) and request.claim is not None:
            self._learn_claim(self._writers[client, request.name], request.claim, answer)

    def _learn_claim(self, writer: _Writer, claim: history.Claim, answer: history.Answer) -> None:
        if writer.pending is not None and writer.pending[0] == claim:
            writer.pending = None
        _, epoch, seq = claim
        if answer.outcome == "appended":
            writer.epoch, writer.next_seq = epoch, seq + 1
        elif answer.outcome == "SequenceGap" and answer.offset is not None:
            writer.next_seq = answer.offset
        elif answer.outcome == "StaleEpoch" and answer.offset is not None:
            writer.epoch, writer.next_seq = answer.offset + 1, 0

    def _create(self, name: str) -> history.Create:
        body = self._body(9) if self._chance.random() < 0.3 else b""
        closed = self._chance.random() < 0.05
        return history.Create(name, body, closed, ttl_seconds=self._ttl[name], keep_bytes=self._keep[name])

    def _fork(self, name: str) -> history.Request:
        others = [other for other in self.names if other != name]
        if not others:
            return history.Head(name)
        source = self._chance.choice(others)
        body = self._body(9) if self._chance.random() < 0.2 else b""
        keep_bytes, offset = self._keep[name], self._offset(source)
        return history.Create(
            name, body, content_type=None, source=source, offset=offset, keep_bytes=keep_bytes
        )

    def _of_bucket(self, bucket: str) -> history.Request:
        requests: list[history.Request] = [
            history.CreateBucket(bucket),
            history.DeleteBucket(bucket),
            history.CountStreams(bucket),
        ]
        return self._chance.choice(requests)

    def _offset(self, name: str) -> int:
        """Most often one of the latest tails that anybody was told."""
        return self._chance.choice(self._tails[name][-3:])

    def _body(self, client: int) -> bytes:
        """No two are alike, so that a read says which appends it holds."""
        self._bodies += 1
        body = b"%d.%d" % (client, self._bodies)
        return body + (_LONG if self._chance.random() < 0.1 else b"") + b";"
