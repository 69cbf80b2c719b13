"""The life of some streams, step by step. Every write of every step is recorded and can be sent again."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from tests.support import BYTES, HOUR_MS, JSON, MINUTE_MS, Process, World, a_key
from tidemark.janitor.sweep import sweep
from tidemark.log.due import KEEP_REPLACED_MS, Packing
from tidemark.log.records import Waiter
from tidemark.log.waiters import put_waiter
from tidemark.protocol.compaction import Compaction
from tidemark.protocol.errors import BucketNotEmpty, BucketNotFound, SoftDeleted, StreamNotFound
from tidemark.protocol.expiry import Expiry, Retention
from tidemark.protocol.messages import parse_content_type
from tidemark.protocol.stream_key import ListingRequest, StreamKey
from tidemark.service import snapshots
from tidemark.service.append import INLINE_BYTES, _Attempt
from tidemark.service.buckets import create_bucket, delete_bucket, describe_bucket
from tidemark.service.catalog import list_streams
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.retention import trim_below

WRITES = frozenset({"PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"})
FOLDED = parse_content_type("text/plain")
LARGE = b"x" * (INLINE_BYTES + 1)
HOUR_AND_A_BIT = HOUR_MS + MINUTE_MS

Sent = tuple[str, bytes]
Place = tuple[str, str]
Step = Callable[["Life"], object]


@dataclass
class Life:
    """One process whose writes are recorded, and the names that its steps share."""

    process: Process
    world: World
    key: StreamKey = field(default_factory=a_key)
    other: StreamKey = field(default_factory=lambda: a_key("other"))
    recorded: list[Sent] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    #: Keys of items that were removed.
    vacated: set[Place] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.send = self.process.dynamodb.send
        self.process.dynamodb.send = self._record

    def _record(self, operation: str, body: bytes) -> tuple[int, bytes]:
        if operation in WRITES:
            self.recorded.append((operation, body))
        return self.send(operation, body)

    def append(self, body: bytes, key: StreamKey | None = None, **asked: Any) -> None:
        self.process.append(key or self.key, body, **asked)

    def tail(self) -> int:
        return load_head(self.process.stores, self.key).tail.offset

    def visible(self) -> list[Any]:
        """What anybody can see of its names through another process."""
        stores = self.world.process().stores
        seen: list[Any] = []
        for key in (self.key, self.other):
            try:
                known = load_head(stores, key)
                snapshot = known.record.snapshot
                folded = snapshots.read_snapshot(stores, key, snapshot.offset).data if snapshot else None
                start, data = known.record.retained, b""
                while start < known.tail.offset:
                    reading = read(stores, key, start)
                    data, start = data + reading.data, reading.page.end
                parts = [part.body for part in snapshots.bootstrap(stores, key).parts] if data else []
                if data and known.record.content_type == BYTES:
                    parts.append(read(stores, key, (known.record.retained + known.tail.offset) // 2).data)
                seen.append((known.record.incarnation, known.tail, data, folded, parts))
            except (StreamNotFound, SoftDeleted) as refusal:
                seen.append(refusal.status)
        if "bucket" in self.notes:
            try:
                seen.append(describe_bucket(stores, self.notes["bucket"]))
                streams = list_streams(stores, self.notes["bucket"], ListingRequest()).streams
                seen.append([known.record.key.stream_id for known in streams])
            except BucketNotFound:
                seen.append(None)
        return seen

    def table(self) -> dict[Place, Any]:
        items: dict[Place, Any] = {}
        position: dict[str, Any] = {}
        while True:
            request = {"TableName": self.world.table_name, "ConsistentRead": True} | position
            status, answer = self.send("Scan", orjson.dumps(request))
            assert status == 200, answer
            page = orjson.loads(answer)
            items |= {(item["pk"]["S"], item["sk"]["S"]): item for item in page["Items"]}
            if "LastEvaluatedKey" not in page:
                return items
            position = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def repeat(self, sent: Sent) -> bool:
        """Send a write again; nobody waits for its answer any more. Returns whether DynamoDB accepts it."""
        operation, body = sent
        statuses = [self.send(operation, body)[0]]
        if operation == "TransactWriteItems":
            forgotten = orjson.loads(body) | {"ClientRequestToken": secrets.token_hex(18)}
            statuses.append(self.send(operation, orjson.dumps(forgotten))[0])
        return 200 in statuses


def later(ms: int) -> Step:
    return lambda life: life.world.clock.advance(ms)


def creates(**asked: Any) -> Step:
    return lambda life: life.process.create(life.key, **asked)


def appends(body: bytes, **asked: Any) -> Step:
    return lambda life: life.append(body, **asked)


def forks(*place: int, **asked: Any) -> Step:
    return lambda life: life.process.fork(life.other, life.key, *place, **asked)


a_moment, an_hour, two_hours = later(1), later(HOUR_AND_A_BIT), later(2 * HOUR_MS)
create_plain, create_closed = creates(), creates(body=b"all", closed=True)
create_with_content, create_large = creates(body=b"first"), creates(body=LARGE)
create_for_ten_minutes = creates(expiry=Expiry(ttl_seconds=600))
create_json = creates(content_type=JSON, body=b'["first"]')
create_with_a_size = creates(content_type=JSON, retention=Retention(size=20))
create_with_an_age = creates(content_type=JSON, retention=Retention(seconds=1800))
create_compacted = creates(content_type=JSON, compaction=Compaction(after_seconds=0, tombstone_seconds=3600))
append, append_large, close = appends(b"more"), appends(LARGE), appends(b"end", close=True)
append_json = appends(b'{"more": 1}', content_type=JSON)
fork, fork_inside, fork_for_ten_minutes = forks(), forks(0, 2), forks(expiry=Expiry(ttl_seconds=600))


def janitor(life: Life) -> None:
    sweep(life.process.stores)


def append_by_many_producers(life: Life) -> None:
    """More than a batch carries: some are pushed out, come back and are pushed out again."""
    life.notes["seq"] = life.notes.get("seq", -1) + 1
    for producer in range(12):
        life.append(b".", claim=(f"p{producer}", 0, life.notes["seq"]))


def append_some(life: Life) -> None:
    for number in range(6):
        life.append(b'["%d", %d]' % (number, number), content_type=JSON)


def append_changes(life: Life) -> None:
    """Of two rows, one of which is then deleted."""
    for number in range(6):
        operation = "delete" if number == 4 else "upsert"
        row = {"type": "row", "key": f"k{number % 2}", "value": number, "headers": {"operation": operation}}
        life.append(orjson.dumps(row), content_type=JSON)


def append_as_mail(life: Life) -> None:
    with patch.object(_Attempt, "combines", lambda *_: True):
        life.append(b"<mail>")


def append_to_the_fork(life: Life) -> None:
    life.append(b"fork's own", life.other)


def append_json_to_the_fork(life: Life) -> None:
    life.append(b'["fork\'s own"]', life.other, content_type=JSON)


def read_it(life: Life) -> None:
    read(life.process.stores, life.key, 0)


def delete_it(life: Life) -> None:
    delete(life.process.stores, life.key)


def delete_the_fork(life: Life) -> None:
    delete(life.process.stores, life.other)


def publish(life: Life) -> None:
    snapshots.publish_snapshot(
        life.process.stores, life.key, snapshots.PublishRequest(life.tail(), FOLDED, b"folded")
    )


def publish_inside(life: Life) -> None:
    """Inside what is packed by then."""
    snapshots.publish_snapshot(life.process.stores, life.key, snapshots.PublishRequest(8, FOLDED, b"folded"))


def uploads(body: bytes) -> Step:
    def upload(life: Life) -> None:
        begun = snapshots.begin_upload(life.process.stores, life.key, life.tail())
        blob = begun.url.partition("?")[0].partition(f"/{life.world.bucket_name}/")[2]
        life.process.objects.put(blob, body)
        life.notes["upload"] = (life.tail(), begun.id)

    return upload


upload, upload_nothing = uploads(b"folded elsewhere"), uploads(b"")
upload_more_than_one_answer = uploads(bytes(snapshots.MAX_ANSWER_BYTES + 1))


def publish_the_upload(life: Life) -> None:
    offset, name = life.notes["upload"]
    snapshots.publish_snapshot(
        life.process.stores, life.key, snapshots.PublishRequest(offset, FOLDED, upload=name)
    )


def trim(life: Life) -> None:
    """All but the last message."""
    start = life.tail()
    life.append(b'["last"]', content_type=JSON)
    trim_below(life.process.stores, life.key, start)


def trim_inside(life: Life) -> None:
    """Inside what is packed by then."""
    trim_below(life.process.stores, life.key, 8)


def make_a_bucket(life: Life) -> None:
    if "bucket" not in life.notes:
        life.notes["bucket"] = f"late-{secrets.token_hex(4)}"
        life.key = StreamKey(life.notes["bucket"], "stream")
        life.other = StreamKey(life.notes["bucket"], "other")
    create_bucket(life.process.stores, life.notes["bucket"])


def remove_the_bucket(life: Life) -> None:
    delete_bucket(life.process.stores, life.notes["bucket"])


def refuse_to_remove_the_full_bucket(life: Life) -> None:
    with pytest.raises(BucketNotEmpty):
        remove_the_bucket(life)


def packs_by(**sizes: int) -> Step:
    packing = Packing(HOUR_MS, every_bytes=1, min_batches=2, block_bytes=16, **sizes)
    return lambda life: setattr(life.process.stores, "packing", packing)


switch_packing_on, pack_all_in_one = packs_by(pack_bytes=40), packs_by()


def there_is_a_pack(life: Life) -> None:
    assert any("px" in item for item in life.table().values())


def packs_were_taken_in(life: Life) -> None:
    assert any(item.get("kd") == {"S": "replaced"} for item in life.table().values())


def it_is_compacted(life: Life) -> None:
    """Further than the last time."""
    compacted = load_head(life.process.stores, life.key).record.compacted
    assert compacted > life.notes.get("compacted", 0)
    life.notes["compacted"] = compacted


def its_deletions_may_go(life: Life) -> None:
    horizon = load_head(life.process.stores, life.key).record.horizon
    assert horizon.offset > 0


def it_has_let_go(life: Life) -> None:
    """Of more than the last time."""
    retained = load_head(life.process.stores, life.key).record.retained
    assert retained > life.notes.get("retained", 0)
    life.notes["retained"] = retained


def wait_for_it(life: Life) -> None:
    until_ms = life.world.clock() + MINUTE_MS
    put_waiter(life.process.stores.table, Waiter("incarnation", "https://queue", until_ms))


def watch_it(life: Life) -> None:
    now_ms = life.world.clock()
    waiter = Waiter("incarnation", "connection", now_ms + MINUTE_MS, "/v1/stream/a", now_ms)
    put_waiter(life.process.stores.table, waiter)


LIVES: dict[str, list[Step]] = {
    "combined": [create_plain, append_as_mail, append, append_as_mail, append_as_mail, delete_it, a_moment,
                 create_plain, append_as_mail, close, delete_it, an_hour, janitor],
    "plain": [create_plain, create_plain, append, delete_it, a_moment, create_plain, append, close, delete_it,
              an_hour, janitor, create_with_content],
    "never written to": [create_plain, delete_it, a_moment, create_plain, delete_it, an_hour, janitor,
                         create_closed],
    "with content": [create_with_content, append, delete_it, an_hour, janitor, create_plain],
    "large": [create_large, append_large, delete_it, an_hour, janitor, janitor, create_plain, append, an_hour,
              janitor],
    "expiry": [create_for_ten_minutes, later(4 * MINUTE_MS), read_it, later(4 * MINUTE_MS), read_it,
               later(8 * MINUTE_MS), janitor, append, later(20 * MINUTE_MS), janitor, an_hour, janitor,
               create_for_ten_minutes, delete_it],
    "expired and replaced": [create_for_ten_minutes, append, later(20 * MINUTE_MS), create_with_content,
                             append, janitor, an_hour, janitor, delete_it],
    "many producers": [create_plain, append_by_many_producers, append_by_many_producers,
                       append_by_many_producers, delete_it],
    "forks": [create_with_content, fork, append_to_the_fork, append, delete_the_fork, a_moment, fork_inside,
              delete_it, append_to_the_fork, delete_the_fork, janitor, an_hour, janitor, create_plain],
    "snapshots": [create_json, append_json, publish, append_json, publish, an_hour, janitor, append_json,
                  delete_it, an_hour, janitor],
    "trims": [create_json, append_json, trim, append_json, trim, an_hour, janitor, append_json, publish,
              an_hour, janitor, delete_it, an_hour, janitor],
    "uploads": [create_json, append_json, upload, publish_the_upload, append_json, publish, an_hour, janitor,
                later(snapshots.LAPSES_AFTER_MS), janitor],
    "a published upload": [create_json, append_json, upload_nothing, publish_the_upload, append_json],
    "a large upload": [create_json, upload_more_than_one_answer, publish_the_upload, append_json],
    "a lapsed upload": [create_json, append_json, upload, later(snapshots.LAPSES_AFTER_MS), janitor,
                        append_json],
    "buckets": [make_a_bucket, create_plain, append, a_moment, refuse_to_remove_the_full_bucket, a_moment,
                delete_it, a_moment, remove_the_bucket, a_moment, make_a_bucket, create_with_content,
                delete_it, remove_the_bucket, a_moment, make_a_bucket],
    "packs": [create_json, switch_packing_on, append_some, append_json, an_hour, janitor, there_is_a_pack,
              append_json, publish_inside, append_some, an_hour, janitor, fork, delete_the_fork, delete_it,
              an_hour, janitor, create_json],
    "packs of packs": [create_json, switch_packing_on, append_some, an_hour, janitor, there_is_a_pack,
                       pack_all_in_one, append_some, append_some, an_hour, janitor, packs_were_taken_in,
                       append_some, later(KEEP_REPLACED_MS), janitor, publish_inside, an_hour, janitor,
                       delete_it, an_hour, janitor, create_json],
    "a size": [create_with_a_size, append_some, two_hours, janitor, it_has_let_go, append_some, two_hours,
               janitor, it_has_let_go, append_json, an_hour, janitor, delete_it, an_hour, janitor,
               create_with_a_size],
    "an age": [create_with_an_age, append_some, two_hours, janitor, it_has_let_go, append_json, an_hour,
               janitor, publish, an_hour, janitor],
    "a size and packs": [switch_packing_on, create_with_a_size, append_some, append_some, two_hours, janitor,
                         janitor, it_has_let_go, append_some, two_hours, janitor, it_has_let_go, an_hour,
                         janitor, append_json, delete_it],
    "a packed source that is trimmed": [create_json, switch_packing_on, append_some, an_hour, janitor,
                                        there_is_a_pack, fork, trim_inside, append_json_to_the_fork, an_hour,
                                        janitor, delete_the_fork, an_hour, janitor, append_json],
    "a packed source that is deleted": [create_json, switch_packing_on, append_some, an_hour, janitor, fork,
                                        delete_it, an_hour, janitor, append_json_to_the_fork,
                                        delete_the_fork, janitor, an_hour, janitor, create_json],
    "a fork with its source's snapshot": [create_json, append_json, publish, fork, append_json, publish,
                                          an_hour, janitor, delete_it, an_hour, janitor, delete_the_fork,
                                          janitor, an_hour, janitor, create_json],
    "a fork that expires": [create_with_content, fork_for_ten_minutes, delete_it, later(20 * MINUTE_MS),
                            janitor, create_plain, append, fork_for_ten_minutes, append_to_the_fork,
                            later(20 * MINUTE_MS), janitor, fork, an_hour, janitor, append],
    "packs of combined appends": [create_plain, switch_packing_on, append_as_mail, append_as_mail,
                                  append_as_mail, append, an_hour, janitor, there_is_a_pack, append_as_mail,
                                  delete_it, an_hour, janitor],
    "compacted": [create_compacted, pack_all_in_one, append_changes, append_changes, two_hours, janitor,
                  it_is_compacted, two_hours, janitor, its_deletions_may_go, fork, append_changes,
                  append_json_to_the_fork, two_hours, janitor, delete_the_fork, append_changes, two_hours,
                  janitor, it_is_compacted, two_hours, janitor, append_changes, two_hours, janitor,
                  it_is_compacted, delete_it, an_hour, janitor, create_json],
    "waiters": [wait_for_it, watch_it, later(MINUTE_MS // 2), wait_for_it, watch_it],
}  # fmt: skip
