"""Backup and verification of a whole store."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from tidemark.blobs import Stored, bootstrap_blob_key
from tidemark.engine.database import Database
from tidemark.engine.files import BlobFiles
from tidemark.engine.rows import RowFault, checked_rows
from tidemark.engine.sqlite_file import open_to_read
from tidemark.engine.table import EmbeddedTable, faults_of_messages
from tidemark.log.buckets import list_bucket_ids, pages_of_records
from tidemark.log.read import load_last, load_stream, read_page
from tidemark.log.records import StreamRecord
from tidemark.log.schema import is_end_mark, log_pk, stream_of
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.read import with_blobs
from tidemark.service.snapshots import MAX_ANSWER_BYTES
from tidemark.service.stores import Stores, connect
from tidemark.settings import Settings

Faults = Iterator[str]
#: Findings after which SQLite stops its check.
_MOST_FINDINGS: Final = 100
_UNFINISHED: Final = shutil.ignore_patterns("*.part")
#: A copy of a store needs these files beside the table.
_BESIDE = ("blobs", "url-key", "webhook-keys")


class NoStore(OSError):
    """There is no such store or stack, or the target of the copy exists already."""


def database_of(data_dir: Path) -> Path:
    """Raises NoStore."""
    database = data_dir / "tidemark.db"
    if not database.exists():
        raise NoStore(f"{data_dir} has no tidemark.db: name the DATA_DIR of a server")
    return database


def embedded_stores(data_dir: Path) -> Stores:
    """Return read-only stores of a server, stopped or running, with the committed data. Raises NoStore,
    UnusableDatabase."""
    table = EmbeddedTable(Database(database_of(data_dir), read_only=True))
    return Stores(table, BlobFiles(data_dir / "blobs", read_only=True))


def stack_stores(table: str, objects: str) -> Stores:
    """Return the stores of a stack on AWS, with the environment's credentials. Raises NoStore if the table
    cannot be read, and OSError without credentials."""
    stores = connect(Settings(table, objects))
    try:
        stores.check_format()
    except ProtocolError as failure:
        raise NoStore(f"the table {table} cannot be read: {failure.message}") from failure
    return stores


def outputs_of_stack(name: str, region: str | None = None) -> dict[str, str]:
    """Raises NoStore."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        [stack] = boto3.client("cloudformation", region_name=region).describe_stacks(StackName=name)["Stacks"]
    except (BotoCoreError, ClientError) as failure:
        raise NoStore(f"The stack {name} cannot be described: {failure}") from None
    outputs = {each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", [])}
    if "TableName" not in outputs:
        raise NoStore(f"{name} is not a stack of Tidemark")
    return outputs


def back_up(data_dir: Path, target: Path, copied: Callable[[int], None] = lambda _: None) -> None:
    """Copy a consistent snapshot of a store, whose server may run, to a new folder for use as DATA_DIR.

    The table is copied first: its blobs stay for an hour, even if they are deleted meanwhile. The folder gets
    its final name when the copy is complete. `copied` is called with the size of each copied file. Raises
    NoStore, UnusableDatabase.
    """
    source, part = database_of(data_dir), target.with_name(f"{target.name}.part")
    with closing(open_to_read(source)) as table:
        if target.exists():
            raise NoStore(f"{target} is there already: name a folder that is not")
        shutil.rmtree(part, ignore_errors=True)  # From an interrupted copy.
        part.mkdir(mode=0o700, parents=True)
        with closing(sqlite3.connect(part / source.name)) as copy:
            table.backup(copy)
        copied((part / source.name).stat().st_size)
        _copy_beside(data_dir, part, copied)
    part.rename(target)


def _copy_beside(data_dir: Path, target: Path, copied: Callable[[int], None]) -> None:
    def copy(source: str, destination: str) -> None:
        shutil.copy2(source, destination)
        copied(Path(destination).stat().st_size)

    for name in _BESIDE:
        found = data_dir / name
        if found.is_dir():
            try:
                shutil.copytree(found, target / name, ignore=_UNFINISHED, copy_function=copy)
            except shutil.Error as failed:
                # Files removed meanwhile are not named in the copied table.
                if any(Path(source).exists() for source, *_ in failed.args[0]):
                    raise
        elif found.exists():
            shutil.copy2(found, target / name)


def verify(stores: Stores, looked_at: Callable[[StreamRecord], None] = lambda _: None) -> Faults:
    """Check every row of an embedded store, and every stream. Yield a line for each damaged or missing part.
    Changes nothing. `looked_at` is called with each stream."""
    keys: Iterable[StreamKey] = _listed(stores)
    if isinstance(stores.table, EmbeddedTable):
        keys = yield from _faults_of_file(Path(stores.table.database.path))
    for key in keys:
        name = f"{key.bucket}/{key.stream_id}"
        for check in (_check_log, _check_snapshot):
            try:
                record = load_stream(stores.table, key)
                if record is None:
                    break  # Deleted meanwhile.
                if check is _check_log:
                    looked_at(record)
                yield from (f"{name}{fault}" for fault in check(stores, record))
            except Exception as fault:  # noqa: BLE001 - report any read error, and check the rest
                if not isinstance(fault.__cause__, RowFault):  # A bad row is reported already.
                    yield f"{name} cannot be read: {_reason(fault)}"
                break


def _reason(fault: Exception) -> str:
    if isinstance(fault, ProtocolError):
        return f"{fault.message}{f' ({fault.__cause__})' if fault.__cause__ else ''}"
    return f"{type(fault).__name__}: {fault}"


# --- streams ---


def _listed(stores: Stores) -> Iterator[StreamKey]:
    for bucket in _buckets(stores):
        for records in pages_of_records(stores.table, bucket, size=100):
            yield from (record.key for record in records)


def _buckets(stores: Stores) -> Iterator[str]:
    yield PLAIN_BUCKET
    after, more = "", True
    while more:
        found, more = list_bucket_ids(stores.table, "", after, 100)
        yield from found
        after = found[-1] if found else after


def _check_log(stores: Stores, record: StreamRecord) -> Faults:
    """Yield the first fault of the log, from the retained offset to the last batch."""
    tail = load_last(stores.table, log_pk(record.key, record.incarnation))
    start, last, at_tail = record.retained, None, False
    try:
        while not at_tail:
            page = with_blobs(stores, read_page(stores.table, record, start, fill=stores.fill))
            first = page.batches[0] if page.batches else None
            if first and last and first.start == last.end and not first.checksums.follow(last.checksums):
                yield f" at {start}: this batch was written behind another one than the one before it"
                return
            last = page.batches[-1] if page.batches else last
            start, at_tail = page.end, page.up_to_date
    except ProtocolError as fault:
        if not isinstance(fault.__cause__, RowFault):
            yield f" at {start}: {_reason(fault)}"
        return
    if tail is not None and start < tail.end:
        yield f" at {start}: batches are missing from there to its last one, which ends at {tail.end}"


def _check_snapshot(stores: Stores, record: StreamRecord) -> Faults:
    snapshot = record.snapshot
    if snapshot is None:
        return
    place = f", its snapshot at {snapshot.offset}"
    try:
        if snapshot.size <= MAX_ANSWER_BYTES:
            stores.snapshot_blob(snapshot)
            return
        parts = {
            snapshot.blob: Stored(snapshot.size, snapshot.etag, snapshot.crc),
            bootstrap_blob_key(snapshot.blob): Stored(0, crc=snapshot.bootstrap_crc),
        }
        for blob, known in parts.items():
            if not _is_as_published(stores, blob, known):
                yield f"{place}: {blob} is gone, or another"
    except ProtocolError as fault:
        yield f"{place}: {_reason(fault)}"


def _is_as_published(stores: Stores, blob: str, known: Stored) -> bool:
    """Whether the blob has the known size, ETag and checksum. A size of 0 is unknown."""
    found = stores.blobs.stored(blob)
    return (
        found is not None
        and known.size in {0, found.size}
        and known.etag in {None, found.etag}
        and known.crc in {None, found.crc}
    )


# --- the embedded engine's file ---


def _faults_of_file(path: Path) -> Generator[str, None, list[StreamKey]]:
    """Yield the faults of the pages, rows and messages. Return the keys of the streams."""
    keys: list[StreamKey] = []
    with closing(open_to_read(path)) as db:
        for check in (_integrity, partial(_rows, keys), faults_of_messages):
            try:
                yield from (f"{path.name}: {fault}" for fault in check(db))
            except sqlite3.Error as fault:
                yield f"{path.name}: it cannot be read to its end: {fault}"
    return keys


def _integrity(db: sqlite3.Connection) -> Faults:
    for (found,) in db.execute(f"PRAGMA integrity_check({_MOST_FINDINGS})"):
        yield from (line for line in found.splitlines() if line != "ok" and not line.startswith("***"))


def _rows(keys: list[StreamKey], db: sqlite3.Connection) -> Faults:
    for item, fault in checked_rows(db):
        if fault:
            yield fault
        elif not is_end_mark(item) and (key := stream_of(item)):
            keys.append(key)
