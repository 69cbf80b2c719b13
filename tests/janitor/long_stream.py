"""A stream as long as one likes, in little memory: message n is the batch at n × 100. Table and objects are
files."""

import random
import sqlite3
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from tests.simulation.objects import SimulatedBlobs, SimulatedBucket
from tests.simulation.table import SimulatedTable
from tests.simulation.tasks import Tasks
from tests.support import JSON, append_request, create_request
from tidemark.aws.dynamodb import DynamoDB
from tidemark.aws.s3 import Objects
from tidemark.log.due import Packing, schedule
from tidemark.log.dynamodb_table import DynamoDBTable
from tidemark.log.records import Due, DueKind
from tidemark.log.schema import PACK_INDEX, log_pk
from tidemark.log.tails import RecentBatches
from tidemark.protocol.offset import WIDTH, render_offset
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import append
from tidemark.service.create import create
from tidemark.service.load import load_head
from tidemark.service.stores import MEGABYTE, Stores

HOUR_MS: Final = 60 * 60 * 1000
MESSAGE_BYTES: Final = 100
KEY: Final = StreamKey("v1", "long")
_WRITTEN_MS: Final = 1_700_000_000_000


def _message(number: int) -> bytes:
    """JSON that deflates to about half: most of it are random digits."""
    digits = random.Random(number).randbytes(MESSAGE_BYTES).hex().encode()
    return (b'{"n":%04d,"text":"' % (number % 1000) + digits)[: MESSAGE_BYTES - 3] + b'"},'


_MESSAGES: Final = [_message(number) for number in range(1000)]
_ENCODED: Final = [b64encode(message).decode() for message in _MESSAGES]


def data_between(start: int, end: int) -> bytes:
    """What the stream has between two ends of messages."""
    return b"".join(_MESSAGES[at % 1000] for at in range(start // MESSAGE_BYTES, end // MESSAGE_BYTES))


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


def _batches(pk: str, messages: int) -> Iterator[tuple[str, str, bytes, None, int]]:
    """Rows of the engine's table."""
    for number in range(messages):
        start = number * MESSAGE_BYTES
        item = (
            f'{{"pk":{{"S":"{pk}"}},"sk":{{"S":"{render_offset(start)}"}},'
            f'"e":{{"N":"{start + MESSAGE_BYTES}"}},"i":{{"S":"{number:016x}"}},'
            f'"t":{{"N":"{_WRITTEN_MS + number}"}},"b":{{"B":"{_ENCODED[number % 1000]}"}}}}'
        )
        yield pk, render_offset(start), item.encode(), None, crc32(item.encode())


def _without_syncs(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA synchronous = OFF")


class Files(MutableMapping[str, bytes]):
    """Objects by their names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / key.replace("/", "~")

    def __getitem__(self, key: str) -> bytes:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None

    def __setitem__(self, key: str, data: bytes) -> None:
        self._path(key).write_bytes(data)

    def __delitem__(self, key: str) -> None:
        self._path(key).unlink()

    def __iter__(self) -> Iterator[str]:
        return iter([path.name.replace("~", "/") for path in self._folder.iterdir()])

    def __len__(self) -> int:
        return sum(1 for _ in self._folder.iterdir())

    def size(self) -> int:
        return sum(path.stat().st_size for path in self._folder.iterdir())


@dataclass
class LongStream:
    """`messages` appends of 100 bytes, all of them old, and one more: written where the folder has none yet.
    `calls` counts what is asked of storage."""

    messages: int
    folder: Path
    calls: Counter[str] = field(default_factory=Counter)
    now_ms: int = 1_800_000_000_000
    marks: int = 0
    #: What packing took of memory, if it was measured.
    grown_bytes: int = 0

    def __post_init__(self) -> None:
        is_new = not (self.folder / "table.db").exists()
        self.table = SimulatedTable(lambda: self.now_ms, self.folder / "table.db")
        # What a power cut takes is not asked here.
        self.table.table.database.operate(_without_syncs, writes=False)
        self.bucket, self.objects = SimulatedBucket(), Files(self.folder / "objects")
        self.bucket.objects = self.objects  # type: ignore[assignment]
        self.end = self.messages * MESSAGE_BYTES
        if is_new:
            create(self.process(), KEY, create_request(JSON))
        self.record = load_head(self.process(), KEY).record
        self.pk = log_pk(KEY, self.record.incarnation)
        if is_new:
            self._write()

    def _write(self) -> None:
        insert = "INSERT INTO items (pk, sk, item, ttl, crc) VALUES (?, ?, ?, ?, ?)"
        rows = _batches(self.pk, self.messages)
        self.table.table.database.operate(lambda db: db.executemany(insert, rows).rowcount, writes=True)
        append(self.process(), KEY, [append_request(b"[1]", content_type=JSON)])
        schedule(
            self.process().table,
            Due(DueKind.PACK, KEY, self.record.incarnation, self.now_ms, "all", self.end),
        )
        self.now_ms += HOUR_MS
        self.calls.clear()

    @property
    def batches_left(self) -> int:
        """Of the old ones."""
        count = "SELECT count(*) FROM items WHERE pk = ? AND length(sk) = ? AND sk < ? AND NOT instr(item, ?)"
        place = (self.pk, WIDTH, render_offset(self.end), f'"{PACK_INDEX}"'.encode())
        left: int = self.table.table.database.operate(
            lambda db: db.execute(count, place).fetchone()[0], writes=False
        )
        return left

    def process(self) -> Stores:
        """One that knows nothing yet."""
        dynamodb = DynamoDB(partial(self._counted, self.table.send))
        objects = Objects(partial(self._counted, self.bucket.send))
        return Stores(
            DynamoDBTable(dynamodb, "long"),
            SimulatedBlobs(self.bucket, objects, lambda: None),
            recent=RecentBatches(16 * MEGABYTE, lambda: self.now_ms),
            clock_ms=lambda: self.now_ms,
            new_id=self._new_id,
            concurrency=Tasks(),
            packing=Packing(HOUR_MS),
        )

    def _new_id(self) -> str:
        self.marks += 1
        return f"{self.marks:016x}"

    def _counted(self, send: Any, operation: str, *more: Any) -> tuple[int, bytes]:
        self.calls[operation] += 1
        answer: tuple[int, bytes] = send(operation, *more)
        return answer
