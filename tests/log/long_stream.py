"""A stream as long as one likes, in no memory: its batches are made when they are asked for.

The table is the simulated one. Only the items of one log are not stored: message n is the batch at n × 100.
What is removed of them is a byte each. Objects are files.
"""

from __future__ import annotations

import random
from base64 import b64encode
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from tests.simulation.expressions import project
from tests.simulation.memory import InOrder
from tests.simulation.objects import SimulatedBlobs
from tests.simulation.table import Answer, Arguments, SimulatedTable
from tests.support import JSON, append_request, create_request
from tidemark.aws.dynamodb import DynamoDB
from tidemark.aws.s3 import Objects
from tidemark.log.due import schedule
from tidemark.log.dynamodb import DynamoDBTable
from tidemark.log.recent import RecentBatches
from tidemark.log.records import Due, DueKind
from tidemark.log.schema import Item, log_pk
from tidemark.protocol.offset import WIDTH, render_offset
from tidemark.protocol.packing import Packing
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import append
from tidemark.service.create import create
from tidemark.service.load import load_head
from tidemark.service.stores import MEGABYTE, Stores

HOUR_MS: Final = 60 * 60 * 1000
MESSAGE_BYTES: Final = 100
KEY: Final = StreamKey("v1", "long")
#: DynamoDB ends a page here, and an item of a message of 100 bytes counts 213.
_PAGE_BYTES: Final = 1024 * 1024
_ITEM_BYTES: Final = 213
_WRITTEN_MS: Final = 1_700_000_000_000


def _message(number: int) -> bytes:
    """JSON that deflates to about half: most of it are random digits."""
    digits = random.Random(number).randbytes(MESSAGE_BYTES).hex().encode()
    return (b'{"n":%04d,"text":"' % (number % 1000) + digits)[: MESSAGE_BYTES - 3] + b'"},'


_MESSAGES: Final = [_message(number) for number in range(1000)]
_ENCODED: Final = [b64encode(message).decode() for message in _MESSAGES]


def data_between(start: int, end: int) -> bytes:
    """What the stream has between two ends of messages."""
    return b"".join(
        _MESSAGES[number % 1000] for number in range(start // MESSAGE_BYTES, end // MESSAGE_BYTES)
    )


class Peak:
    """The most memory that this process has had since this was made, in bytes. Linux alone says so."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = self._of("VmRSS")

    @staticmethod
    def _of(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        [value] = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
        return int(value) * 1024

    @property
    def grown_bytes(self) -> int:
        return self._of("VmHWM") - self._before


class LongTable(SimulatedTable):
    """The table, once `fill` has said which log is the long one."""

    def __init__(self, now_ms: Any) -> None:
        super().__init__(now_ms)
        self._pk = ""
        #: A zero for each message whose batch is there.
        self._gone = bytearray()

    def fill(self, pk: str, messages: int) -> None:
        self._pk, self._gone = pk, bytearray(messages)

    @property
    def batches_left(self) -> int:
        return self._gone.count(0)

    def send(self, operation: str, body: bytes) -> Answer:
        if operation == "Query" and self._gone:
            arguments = orjson.loads(body)
            if arguments["ExpressionAttributeValues"][":pk"]["S"] == self._pk:
                return 200, self._log_page(arguments)
        return super().send(operation, body)

    def find(self, key: Item) -> Item | None:
        number = self._number(key)
        if number is not None and not self._gone[number]:
            return self._batch(number)
        return super().find(key)

    def _store(self, item: Item) -> None:
        """A pack takes the place of a batch."""
        number = self._number(item)
        if number is not None:
            self._gone[number] = 1
        super()._store(item)

    def _drop(self, key: Item) -> None:
        number = self._number(key)
        if number is not None:
            self._gone[number] = 1
        super()._drop(key)

    def _number(self, key: Item) -> int | None:
        sk = key["sk"]["S"]
        if key["pk"]["S"] != self._pk or len(sk) != WIDTH or int(sk) % MESSAGE_BYTES:
            return None
        number = int(sk) // MESSAGE_BYTES
        return number if number < len(self._gone) else None

    def _batch(self, number: int) -> Item:
        item: Item = orjson.loads(self._text(number))
        return item

    def _text(self, number: int) -> str:
        start = number * MESSAGE_BYTES
        return (
            f'{{"pk":{{"S":"{self._pk}"}},"sk":{{"S":"{render_offset(start)}"}},'
            f'"e":{{"N":"{start + MESSAGE_BYTES}"}},"i":{{"S":"{number:016x}"}},'
            f'"t":{{"N":"{_WRITTEN_MS + number}"}},"b":{{"B":"{_ENCODED[number % 1000]}"}}}}'
        )

    def _log_page(self, arguments: Arguments) -> bytes:
        values, names = arguments["ExpressionAttributeValues"], arguments.get("ExpressionAttributeNames", {})
        projection, limit = arguments.get("ProjectionExpression"), arguments.get("Limit", 10**9)
        low, high = values[":low"]["S"], values[":high"]["S"]
        forward = arguments.get("ScanIndexForward", True)
        found: list[str] = []
        more, size = False, 0
        for sk, item in self._in_order(low, high, forward=forward):
            if len(found) == limit or size >= _PAGE_BYTES:
                more = True
                break
            if item is not None:
                found.append(orjson.dumps(project(item, projection, names)).decode())
            elif projection is not None:
                found.append(
                    orjson.dumps(project(self._batch(int(sk) // MESSAGE_BYTES), projection, names)).decode()
                )
            else:
                found.append(self._text(int(sk) // MESSAGE_BYTES))
            size += _ITEM_BYTES
        last = ',"LastEvaluatedKey":{}' if more or len(found) == limit else ""
        return f'{{"Items":[{",".join(found)}],"Count":{len(found)}{last}}}'.encode()

    def _in_order(self, low: str, high: str, *, forward: bool) -> Iterator[tuple[str, Item | None]]:
        """Keys between the two, with the items of those that are stored."""
        keys = self._sorted.get(self._pk, [])
        stored = keys[bisect_left(keys, low) : bisect_right(keys, high)]
        made = self._made(low, high, forward=forward)
        if not forward:
            stored.reverse()
        ahead = next(made, None)
        for sk in stored:
            while ahead is not None and (ahead < sk) is forward:
                yield ahead, None
                ahead = next(made, None)
            yield sk, self._items[self._pk][sk]
        while ahead is not None:
            yield ahead, None
            ahead = next(made, None)

    def _made(self, low: str, high: str, *, forward: bool) -> Iterator[str]:
        messages = len(self._gone)
        first = min(messages, -(-int(low[:WIDTH]) // MESSAGE_BYTES)) if low[:WIDTH].isdigit() else 0
        if first < messages and render_offset(first * MESSAGE_BYTES) < low:
            first += 1
        behind = min(messages, int(high[:WIDTH]) // MESSAGE_BYTES + 1) if high[:WIDTH].isdigit() else messages
        if low == " ":
            first = 0
        find = self._gone.find if forward else self._gone.rfind
        while (number := find(b"\0", first, behind)) >= 0:
            yield render_offset(number * MESSAGE_BYTES)
            first, behind = (number + 1, behind) if forward else (first, number)


class DiskBucket:
    """Objects as files; `send` is the seam of `tidemark.aws.s3.Objects`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def objects(self) -> DiskBucket:
        return self

    def _path(self, key: str) -> Path:
        return self._folder / key.replace("/", "~")

    def __iter__(self) -> Iterator[str]:
        return iter([path.name.replace("~", "/") for path in self._folder.iterdir()])

    def pop(self, key: str, _default: None) -> None:
        self._path(key).unlink(missing_ok=True)

    def __delitem__(self, key: str) -> None:
        self._path(key).unlink()

    def size(self) -> int:
        return sum(path.stat().st_size for path in self._folder.iterdir())

    def send(self, operation: str, key: str, body: bytes) -> tuple[int, bytes]:
        path = self._path(key)
        if operation == "PutObject":
            path.write_bytes(body)
            return 200, b""
        if not path.exists():
            return 404, b"<Error><Code>NoSuchKey</Code></Error>"
        if operation == "GetObject":
            return 200, path.read_bytes()
        assert operation == "GetRange", operation
        first, last = map(int, body.removeprefix(b"bytes=").split(b"-"))
        with path.open("rb") as file:
            file.seek(first)
            return 206, file.read(last + 1 - first)


@dataclass
class LongStream:
    """`messages` appends of 100 bytes, all of them old, and one more. `calls` counts what is asked of
    storage."""

    messages: int
    folder: Path
    calls: Counter[str] = field(default_factory=Counter)
    now_ms: int = 1_800_000_000_000

    def __post_init__(self) -> None:
        self.table = LongTable(lambda: self.now_ms)
        self.bucket = DiskBucket(self.folder)
        self.marks = 0
        stores = self.process()
        create(stores, KEY, create_request(JSON))
        self.record = load_head(stores, KEY).record
        self.table.fill(log_pk(KEY, self.record.incarnation), self.messages)
        append(self.process(), KEY, [append_request(b"[1]", content_type=JSON)])
        self.end = self.messages * MESSAGE_BYTES
        schedule(stores.table, Due(DueKind.PACK, KEY, self.record.incarnation, self.now_ms, "all", self.end))
        self.now_ms += HOUR_MS
        self.calls.clear()

    def process(self) -> Stores:
        """One that knows nothing yet."""
        dynamodb = DynamoDB(partial(self._counted, self.table.send))
        objects = Objects(partial(self._counted, self.bucket.send))
        blobs: Any = SimulatedBlobs(self.bucket, objects, lambda: None)  # type: ignore[arg-type]
        return Stores(
            DynamoDBTable(dynamodb, "long"),
            blobs,
            recent=RecentBatches(16 * MEGABYTE, lambda: self.now_ms),
            clock_ms=lambda: self.now_ms,
            new_id=self._new_id,
            concurrency=InOrder(),
            packing=Packing(HOUR_MS),
        )

    def _new_id(self) -> str:
        self.marks += 1
        return f"{self.marks:016x}"

    def _counted(self, send: Any, operation: str, *more: Any) -> tuple[int, bytes]:
        self.calls[operation] += 1
        answer: tuple[int, bytes] = send(operation, *more)
        return answer
