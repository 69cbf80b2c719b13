"""Looking after a store as a whole: whether everything in it can be read, and a copy of it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from tidemark.engine.database import Database
from tidemark.engine.files import BlobFiles
from tidemark.engine.table import EmbeddedTable
from tidemark.log.buckets import list_buckets, list_records
from tidemark.log.read import read_page
from tidemark.log.records import Batch, StreamRecord
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.service.read import with_blobs
from tidemark.service.stores import Stores, connect
from tidemark.settings import Settings

#: The files beside the table that a copy of a store needs.
_BESIDE = ("blobs", "url-key", "webhook-keys")


class NoStore(Exception):
    """The folder has no store, or the copy's place is taken; the message says which."""


def embedded_stores(data_dir: Path) -> Stores:
    """The stores of a server that is stopped or running; they show committed data. Raises NoStore,
    UnusableDatabase."""
    database = data_dir / "tidemark.db"
    if not database.exists():
        raise NoStore(f"{data_dir} has no tidemark.db: name the DATA_DIR of a server")
    return Stores(EmbeddedTable(Database(database)), BlobFiles(data_dir / "blobs"))


def stack_stores(table: str, objects: str) -> Stores:
    """The stores of a stack on AWS, by the environment's credentials. Raises NoStore if the table cannot be
    read, and RuntimeError where there are no credentials."""
    stores = connect(Settings(table, objects))
    try:
        stores.check_format()
    except ProtocolError as failure:
        raise NoStore(f"the table {table} cannot be read: {failure.message}") from failure
    return stores


def back_up(data_dir: Path, target: Path) -> None:
    """Copy a store whose server may run, as it is at one moment, to a new folder, which is a DATA_DIR.

    The table first: a blob that it names stays for an hour, whatever is deleted meanwhile. Raises NoStore.
    """
    source = data_dir / "tidemark.db"
    if not source.exists():
        raise NoStore(f"{data_dir} has no tidemark.db: name the DATA_DIR of a server")
    try:
        target.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise NoStore(f"{target} is there already: name a folder that is not") from None
    with closing(sqlite3.connect(source)) as table, closing(sqlite3.connect(target / source.name)) as copy:
        table.backup(copy)
    for name in _BESIDE:
        found = data_dir / name
        if found.is_dir():
            shutil.copytree(found, target / name, ignore=shutil.ignore_patterns("*.part"), dirs_exist_ok=True)
        elif found.exists():
            shutil.copy2(found, target / name)


def verify(stores: Stores, looked_at: Callable[[StreamRecord], None] = lambda _: None) -> Iterator[str]:
    """Check every stream; yields a line for each damaged or missing part. Changes nothing. `looked_at` is
    called with each stream."""
    for bucket in [PLAIN_BUCKET, *_buckets(stores)]:
        after, more = "", True
        while more:
            records, more = list_records(stores.table, bucket, "", after, 100)
            for record in records:
                after = record.key.stream_id
                looked_at(record)
                yield from _faults_of(stores, record)
            more = more and bool(records)


def _buckets(stores: Stores) -> Iterator[str]:
    after, more = "", True
    while more:
        found, more = list_buckets(stores.table, "", after, 100)
        yield from found
        after = found[-1] if found else after
        more = more and bool(found)


def _faults_of(stores: Stores, record: StreamRecord) -> Iterator[str]:
    """The first fault of its log, and that of its snapshot."""
    name, start, last = f"{record.key.bucket}/{record.key.stream_id}", record.retained, None
    try:
        at_tail = False
        while not at_tail:
            page = with_blobs(stores, read_page(stores.table, record, start, fill=stores.fill))
            if last is not None and page.batches and not _follows(page.batches[0], last):
                yield f"{name} at {start}: this batch was written behind another one than the one before it"
                break
            last, start, at_tail = page.last or last, page.end, page.up_to_date
    except ProtocolError as fault:
        yield f"{name} at {start}: {fault.message}"
    if record.snapshot is not None:
        try:
            stores.snapshot_blob(record.snapshot)
        except ProtocolError as fault:
            yield f"{name}, its snapshot at {record.snapshot.offset}: {fault.message}"


def _follows(batch: Batch, earlier: Batch) -> bool:
    return batch.start != earlier.end or batch.checksums.follow(earlier.checksums)
