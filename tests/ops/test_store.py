"""`tidemark backup` and `tidemark verify`: a copy is whole, and what is damaged is named."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support import BYTES, append_request, create_request, make_world
from tidemark.local.engines import LocalServices
from tidemark.ops.cli import main
from tidemark.ops.store import embedded_stores, verify
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.server.system import EmbeddedSystem
from tidemark.service.append import INLINE_BYTES, append
from tidemark.service.create import create
from tidemark.service.read import read
from tidemark.settings import Settings

SMALL, LARGE = StreamKey(PLAIN_BUCKET, "small"), StreamKey(PLAIN_BUCKET, "large")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Of a server that still runs."""
    folder = tmp_path / "data"
    folder.mkdir()
    stores = EmbeddedSystem(Settings(), folder, folder / "blobs").stores
    for key in (SMALL, LARGE):
        create(stores, key, create_request(BYTES))
    for body in (b"one", b"two", b"three"):
        append(stores, SMALL, [append_request(body)])
    append(stores, LARGE, [append_request(b"x" * (INLINE_BYTES + 1))])
    return folder


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, [*arguments])
    return done.exit_code, done.output


def test_a_copy_is_a_store_of_its_own(data_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert run("backup", "--data-dir", str(data_dir), str(copy))[0] == 0
    stores = embedded_stores(copy)
    assert read(stores, SMALL, 0).data == b"onetwothree"
    assert len(read(stores, LARGE, 0).data) == INLINE_BYTES + 1
    assert list(verify(stores)) == []
    code, said = run("backup", "--data-dir", str(data_dir), str(copy))
    assert (code, "is there already" in said) == (1, True)


def test_a_store_without_faults_is_said_to_have_none(data_dir: Path) -> None:
    assert run("verify", "--data-dir", str(data_dir)) == (0, "2 streams, 0 faults\n")


@pytest.mark.parametrize("what", ["a bit of a batch", "a batch that is gone", "no blob", "another blob"])
def test_what_is_damaged_is_named_and_left_as_it_is(data_dir: Path, what: str) -> None:
    [blob] = [path for path in (data_dir / "blobs").rglob("*") if path.is_file()]
    with sqlite3.connect(data_dir / "tidemark.db") as db:
        key = ("log/v1/small#%", f"{3:016}")
        if what == "a bit of a batch":
            [(stored,)] = db.execute("SELECT item FROM items WHERE pk LIKE ? AND sk = ?", key).fetchall()
            changed = stored.replace(b'"dHdv"', b'"dHdw"')
            assert changed != stored
            db.execute("UPDATE items SET item = ? WHERE pk LIKE ? AND sk = ?", (changed, *key))
        elif what == "a batch that is gone":
            db.execute("DELETE FROM items WHERE pk LIKE ? AND sk = ?", key)
        elif what == "another blob":
            blob.write_bytes(b"y" + blob.read_bytes()[1:])
        else:
            blob.unlink()
    code, said = run("verify", "--data-dir", str(data_dir))
    assert code == 1
    assert ("v1/large at " if "blob" in what else "v1/small at ") in said
    assert said.splitlines()[-1] == "2 streams, 1 faults"


def test_a_stacks_store_is_read_from_its_table_and_its_bucket(services: LocalServices) -> None:
    world = make_world(services)
    process = world.process()
    process.create(SMALL)
    process.append(SMALL, b"one")
    process.append(SMALL, b"x" * (INLINE_BYTES + 1))
    place = ("verify", "--table", world.table_name, "--objects", world.bucket_name)
    assert run(*place) == (0, "1 streams, 0 faults\n")
    [page] = process.s3.get_paginator("list_objects_v2").paginate(Bucket=world.bucket_name)
    for found in page["Contents"]:
        process.s3.delete_object(Bucket=world.bucket_name, Key=found["Key"])
    code, said = run(*place)
    assert (code, "v1/small at 0: " in said, "1 streams, 1 faults" in said) == (1, True, True)
    code, said = run("verify", "--table", "nothing", "--objects", world.bucket_name)
    assert (code, "the table nothing cannot be read" in said) == (1, True)
    assert run("verify", "--table", "alone")[0] == 2


@pytest.mark.parametrize("command", [["verify"], ["backup", "copy"]])
def test_a_folder_without_a_store_is_an_error_of_one_line(command: list[str], tmp_path: Path) -> None:
    code, said = run(command[0], "--data-dir", str(tmp_path), *command[1:])
    assert (code, said.count("\n")) == (1, 1)
    assert "has no tidemark.db" in said
    assert list(tmp_path.iterdir()) == []
