"""`tidemark backup` and `tidemark verify`: a copy is whole, and what is damaged is named."""

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from zlib import crc32

import pytest
from click.testing import CliRunner

from tests.stack.engines import LocalServices
from tests.support import BYTES, append_request, create_request, make_world
from tidemark.cli.__main__ import main
from tidemark.cli.store import back_up, embedded_stores, verify
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


def test_a_copy_is_its_own_store(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was cut off is not there."""
    copy = tmp_path / "copy"
    for failure in (OSError("No space"), shutil.Error([(str(data_dir), str(copy), "No space")])):
        monkeypatch.setattr(shutil, "copytree", Mock(side_effect=failure))
        code, said = run("backup", "--data-dir", str(data_dir), str(copy))
        assert (code, "No space" in said) == (1, True)
    assert not copy.exists()
    monkeypatch.undo()
    assert run("backup", "--data-dir", str(data_dir), str(copy))[0] == 0
    stores = embedded_stores(copy)
    assert read(stores, SMALL, 0).data == b"onetwothree"
    assert len(read(stores, LARGE, 0).data) == INLINE_BYTES + 1
    assert list(verify(stores)) == []
    code, said = run("backup", "--data-dir", str(data_dir), str(copy))
    assert (code, "is there already" in said) == (1, True)


def test_a_copy_has_the_blobs_that_its_table_names(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While blobs are copied, the server goes on: what it writes then is not in the copy, or all of it is. Of
    a file or folder that it removes meanwhile, a link to none stands for the name."""
    (data_dir / "blobs" / "removed").symlink_to("nothing")
    stores, copy_tree = EmbeddedSystem(Settings(), data_dir, data_dir / "blobs").stores, shutil.copytree

    def copy_while_the_server_writes(*arguments: Any, **more: Any) -> Any:
        copied = copy_tree(*arguments, **more)
        append(stores, LARGE, [append_request(b"y" * (INLINE_BYTES + 1))])
        return copied

    monkeypatch.setattr(shutil, "copytree", copy_while_the_server_writes)
    back_up(data_dir, tmp_path / "copy")
    assert list(verify(embedded_stores(tmp_path / "copy"))) == []


def test_a_store_without_faults_is_said_to_have_none(data_dir: Path) -> None:
    assert run("verify", "--data-dir", str(data_dir)) == (0, "2 streams, 0 faults\n")


SMALL_ROW = f"the row 'log/v1/small#INCARNATION {3:016}' "
ITEM = "UPDATE items SET item = {} WHERE pk LIKE 'log/v1/small#%' AND sk = '0000000000000003'"
OLD_ITEM = ITEM.replace("item =", "crc = NULL, item =")
REPLACED = "CAST(replace(CAST(item AS TEXT), '{}', '{}') AS BLOB)"
#: What is done to the store, and what `verify` says of it: one line for each.
DAMAGE = {
    "a bit of a batch": (
        ITEM.format(REPLACED.format("dHdv", "dHdw")),
        [SMALL_ROW + "does not fit its checksum"],
    ),
    "no JSON": (OLD_ITEM.format("x'ff'"), [SMALL_ROW + "cannot be read: "]),
    "a batch that is gone": (
        "DELETE FROM items WHERE pk LIKE 'log/v1/small#%' AND sk = '0000000000000003'",
        ["v1/small at 3: Stored data"],
    ),
    "the key of a batch": (
        "UPDATE items SET sk = '0000000000000002' WHERE pk LIKE 'log/v1/small#%' AND sk = '0000000000000003'",
        ["has the item of 'log/v1/small#INCARNATION 0000000000000003'"],
    ),
    "the key of a stream": (
        "UPDATE items SET sk = 'stream/smalm' WHERE sk = 'stream/small'",
        ["the row 'bucket/v1 stream/smalm' has the item of 'bucket/v1 stream/small'"],
    ),
    "the format": (
        "UPDATE items SET item = x'7b7d' WHERE pk = 'format'",
        ["the row 'format .' cannot be read"],
    ),
    "a time to live": (
        "UPDATE items SET ttl = 7 WHERE pk = 'format'",
        ["the row 'format .' has another time to live"],
    ),
    "a message": ("UPDATE messages SET body = 'x'", ["message 1 does not fit its checksum"]),
    "no blob": ("", ["v1/large at 0: "]),
    "another blob": ("", ["v1/large at 0: "]),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_damaged_is_named_and_left_as_it_is(data_dir: Path, what: str) -> None:
    statement, expected = DAMAGE[what]
    [blob] = [path for path in (data_dir / "blobs").rglob("*") if path.is_file()]
    with closing(sqlite3.connect(data_dir / "tidemark.db", isolation_level=None)) as db:
        db.execute("INSERT INTO messages (topic, due_ms, body, crc) VALUES ('t', 0, 'b', ?)", (crc32(b"tb"),))
        found = db.execute("SELECT pk FROM items WHERE pk LIKE 'log/v1/small#%'").fetchone()[0]
        assert not statement or db.execute(statement).rowcount == 1
    if what == "another blob":
        blob.write_bytes(b"y" + blob.read_bytes()[1:])
    elif what == "no blob":
        blob.unlink()
    code, said = run("verify", "--data-dir", str(data_dir))
    *lines, last = said.replace(found, "log/v1/small#INCARNATION").splitlines()
    assert (code, last.partition(" streams, ")[2]) == (1, f"{len(expected)} faults")
    assert len(lines) == len(expected)
    assert all(part in line for part, line in zip(expected, lines, strict=True)), lines


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


def test_a_terminal_shows_progress(data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    commands = {("verify",): "1 streams checked", ("backup", f"{data_dir}-copy"): "1 files copied, "}
    for (command, *target), said in commands.items():
        with suppress(SystemExit):
            main([command, "--data-dir", str(data_dir), *target])
        shown = capsys.readouterr().err
        assert shown.startswith(f"\r\x1b[K{said}")
        assert shown.endswith("\r\x1b[K")


@pytest.mark.parametrize("command", [["verify"], ["backup", "copy"]])
def test_a_folder_without_a_store_is_an_error_of_one_line(command: list[str], tmp_path: Path) -> None:
    code, said = run(command[0], "--data-dir", str(tmp_path), *command[1:])
    assert (code, said.count("\n")) == (1, 1)
    assert "has no tidemark.db" in said
    assert list(tmp_path.iterdir()) == []


READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'


def run_read_only(folder: Path, *arguments: str) -> tuple[int, str]:
    """The command while nothing can be written in a folder, also by root: in a mount namespace of its own."""
    mounted = ["unshare", "--map-root-user", "--mount", "sh", "-c", READ_ONLY, "sh", str(folder)]
    if shutil.which("unshare") is None or subprocess.run([*mounted, "true"], check=False).returncode:
        pytest.skip("this machine makes no mount namespace")
    command = [*mounted, sys.executable, "-m", "tidemark.cli", *arguments]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def test_a_store_on_a_read_only_mount_is_verified_and_copied(data_dir: Path, tmp_path: Path) -> None:
    """What still is in the log of a server that was killed cannot be read there: that is said."""
    killed, copy = tmp_path / "killed", tmp_path / "copy"
    shutil.copytree(data_dir, killed, ignore=shutil.ignore_patterns("*-shm"))
    code, said = run_read_only(killed, "verify", "--data-dir", str(killed))
    assert (code, said.count("\n")) == (1, 1)
    assert "tidemark.db-wal has commits that are not in it yet" in said
    with closing(sqlite3.connect(killed / "tidemark.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (killed / "tidemark.db-wal").write_bytes(bytes(100_000))  # As a start leaves it.
    assert run_read_only(killed, "verify", "--data-dir", str(killed)) == (0, "2 streams, 0 faults\n")
    assert run_read_only(killed, "backup", "--data-dir", str(killed), str(copy))[0] == 0
    assert run("verify", "--data-dir", str(copy)) == (0, "2 streams, 0 faults\n")
