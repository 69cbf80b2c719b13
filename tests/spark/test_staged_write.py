"""The staged write, step by step: whatever is repeated, and however differently, lands once."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from tests.spark.serving import ThreadedServer, is_append, posts_fail
from tests.spark.streams import filled, key, read_here, table_options
from tests.support import BYTES, JSON, World
from tidemark.service.append import append
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.spark.clients.storage import s3_client
from tidemark.spark.options.connection import InvalidOptions
from tidemark.spark.options.write import parse_write_options
from tidemark.spark.staging import files, manifest
from tidemark.spark.staging.files import (
    BucketStaging,
    DirectoryStaging,
    Staging,
    decode_bodies,
    encode_body,
)
from tidemark.spark.staging.manifest import (
    AppendRun,
    ForeignBatch,
    Manifest,
    ReusedId,
    StagedBatches,
    decode_manifest,
    encode_manifest,
)
from tidemark.spark.writer.chunks import BadRow
from tidemark.spark.writer.publish import PROBE_SEQ, HttpPublisher, NotPublished
from tidemark.spark.writer.writers import StagedPartition, StagedWrite, make_write, parse_write

SCHEMA = StructType([StructField("stream", StringType()), StructField("value", BinaryType())])
ROWS = [orjson.dumps({"n": index}) for index in range(1000)]


class Attempt:
    """One attempt at a batch: rows to tasks, staged; then published, or not."""

    def __init__(self, options: dict[str, str], **more: str) -> None:
        self.write: StagedWrite = make_write(
            parse_write_options({"retrySeconds": "2"} | options | more), SCHEMA
        )

    def stage(self, rows: list[bytes], *, tasks: int = 4, stream: str | None = None) -> list[Any]:
        size = -(-len(rows) // tasks) or 1
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        return [self._task(number, part, stream) for number, part in enumerate(parts)]

    def _task(self, number: int, rows: list[bytes], stream: str | None) -> StagedPartition:
        streams: Any = stream or self.write.options.stream
        pieces = [
            (streams, pa.array(rows[start : start + 100], pa.binary())) for start in range(0, len(rows), 100)
        ]
        staged = self.write.stage(iter(pieces))
        return replace(staged, query="query-1", partition=number)

    def publish(self, staged: list[Any], batch: int = 0) -> Manifest:
        return self.write.publish(staged, batch)


@pytest.fixture(params=["http", "dynamodb"])
def target(
    request: pytest.FixtureRequest, world: World, server: ThreadedServer, name: str, tmp_path: Path
) -> dict[str, str]:
    """Options for writing to the stream `name`, which is there, by either transport."""
    filled(world, name, content_type=JSON)
    where = {"url": server.url} if request.param == "http" else table_options(world)
    return where | {
        "stream": name,
        "stagingDir": str(tmp_path / "staging"),
        "producerId": name,
        "bytesPerAppend": "500",
    }


@pytest.fixture
def over_http(world: World, server: ThreadedServer, name: str, tmp_path: Path) -> dict[str, str]:
    filled(world, name, content_type=JSON)
    return {
        "url": server.url,
        "stream": name,
        "stagingDir": str(tmp_path / "staging"),
        "producerId": name,
        "bytesPerAppend": "500",
        "retrySeconds": "0",
    }


def messages(world: World, name: str) -> list[bytes]:
    stored = world.process().read_all(key(name))
    return [orjson.dumps(value) for value in orjson.loads(b"[" + stored[:-1] + b"]")] if stored else []


def test_rows_arrive_in_their_order(target: dict[str, str], world: World, name: str) -> None:
    attempt = Attempt(target)
    staged = attempt.stage(ROWS)
    root = Path(target["stagingDir"])
    sizes = [len(body) for each in staged for run in each.runs for body in bodies_in(root, run)]
    published = attempt.publish(staged)
    assert messages(world, name) == ROWS
    assert (published.rows, sum(run.appends for run in published.runs)) == (1000, len(sizes))
    assert max(sizes) <= 500 + 1
    # However many appends a task has for a stream, the manifest speaks of them once.
    assert len(published.runs) == 4


def bodies_in(root: Path, run: AppendRun) -> list[bytes]:
    return list(decode_bodies(partial(DirectoryStaging(root).read, run.file), run.start, run.length))


@pytest.mark.parametrize("piece", [1, 3, 4, 5, 11, 1000])
def test_bodies_are_read_back_wherever_pieces_are_cut(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(files, "PIECE_BYTES", piece)
    expected = [b"one", b"", b"x" * 300, b"\x00\x00\x00\x01", b"end"]
    file = io.BytesIO()
    file.write(b"before")
    length = sum(encode_body(file, body) for body in expected)
    file.write(b"behind")
    data = file.getvalue()
    found = decode_bodies(lambda place, size: data[place : place + size], 6, length)
    assert list(found) == expected


def test_a_truncated_staged_file_is_an_error() -> None:
    file = io.BytesIO()
    length = encode_body(file, b"0123456789")
    data = file.getvalue()[:-1]
    with pytest.raises(EOFError):
        list(decode_bodies(lambda place, size: data[place : place + size], 0, length))


REPLAYS: dict[str, Callable[[dict[str, str]], list[Any]]] = {
    "as it was": lambda options: Attempt(options).stage(ROWS),
    "rows in another order": lambda options: Attempt(options).stage(ROWS[::-1]),
    "other partition sizes": lambda options: Attempt(options).stage(ROWS, tasks=7),
    "other append sizes": lambda options: Attempt(options, bytesPerAppend="321").stage(ROWS),
    "fewer rows": lambda options: Attempt(options).stage(ROWS[:100]),
    "no rows": lambda options: Attempt(options).stage([b"0"])[:0] or _empty(options),
}
#: Those that the checkpoint cannot have meant, unless the query is told so.
OTHER_ROWS = {"fewer rows", "no rows"}


def _empty(options: dict[str, str]) -> list[Any]:
    attempt = Attempt(options)
    return [attempt._task(0, [], None)]


@pytest.mark.parametrize("replay", REPLAYS)
@pytest.mark.parametrize("landed", [0, 1, 5, 17])
def test_a_failed_commit_is_repeated_exactly(
    over_http: dict[str, str],
    world: World,
    name: str,
    spoiling: Callable[..., None],
    replay: str,
    landed: int,
) -> None:
    """The server went away after some of the appends; what is repeated is not what was staged first."""
    posts = [0]

    def dies(method: str, _path: str, headers: dict[str, str]) -> str | None:
        posts[0] += is_append(method, headers)
        return "before" if is_append(method, headers) and posts[0] > landed else None

    first = Attempt(over_http)
    staged = first.stage(ROWS)
    spoiling(dies)
    with pytest.raises(NotPublished, match=r"goes on where it stopped|append"):
        first.publish(staged)
    assert posts[0] > 0
    assert len(messages(world, name)) < 1000
    spoiling(lambda *_: None)
    again, resumed = Attempt(over_http), Attempt(over_http, resume="true")
    if replay in OTHER_ROWS:
        with pytest.raises(ReusedId, match=f"restored or copied.* resume=true and producerId={name}"):
            again.publish(REPLAYS[replay](over_http))
        again = resumed
    again.publish(REPLAYS[replay](over_http))
    assert messages(world, name) == ROWS


@pytest.mark.parametrize(
    ("batch", "rows", "resume", "what"),
    [
        (1, ROWS[100:350], "false", "older than what the query has published"),
        (1, ROWS[100:350], "true", "older than what the query has published"),
        (1, ROWS[100:200], "false", "and so is the one after it"),
        (2, ROWS[200:350], "false", "restored or copied"),
    ],
)
def test_a_checkpoint_older_than_what_was_published_is_refused(
    target: dict[str, str], world: World, name: str, batch: int, rows: list[bytes], resume: str, what: str
) -> None:
    """Taken for a repetition, the batch would leave rows out, and the run would succeed."""
    for number in range(3):
        attempt = Attempt(target)
        attempt.publish(attempt.stage(ROWS[number * 100 :][:100]), number)
    restored = Attempt(target, resume=resume)
    with pytest.raises(ReusedId, match=what):
        restored.publish(restored.stage(rows), batch)
    # The newest batch, whose commit Spark did not learn of, is still a repetition.
    repeated = Attempt(target)
    repeated.publish(repeated.stage(ROWS[200:300][::-1], tasks=3), 2)
    assert messages(world, name) == ROWS[:300]


@pytest.mark.parametrize("bytes_per_append", ["250", "500", "2000"])
@pytest.mark.parametrize("batch", [0, 1])
def test_a_batch_that_is_in_the_stream_and_not_in_the_staging_directory_is_refused(
    target: dict[str, str], world: World, name: str, batch: int, bytes_per_append: str
) -> None:
    """The directory was emptied between publish and commit. Cut into larger appends, rows would be missing,
    and into smaller ones doubled."""
    for number in range(batch + 1):
        attempt = Attempt(target)
        attempt.publish(attempt.stage(ROWS[number * 200 :][:200]), number)
    shutil.rmtree(target["stagingDir"])
    again = Attempt(target, bytesPerAppend=bytes_per_append, resume="true")
    staged = again.stage(ROWS[batch * 200 :][:200])
    for _ in range(2):
        with pytest.raises(
            ReusedId, match=rf"{name} has appends 0 to \d+ of batch {batch} .*startingOffsets"
        ):
            again.publish(staged, batch)
    later = Attempt(target)
    if batch:
        with pytest.raises(ReusedId, match=f"{name} has batch 1 .*producer id {name} already"):
            later.publish(later.stage(ROWS[:200]), 0)
    # A batch that was committed needs no notes any more.
    later.publish(later.stage(ROWS[(batch + 1) * 200 :][:200]), batch + 1)
    assert messages(world, name) == ROWS[: (batch + 2) * 200]


def test_a_batch_that_another_driver_has_begun_meanwhile_is_followed(
    over_http: dict[str, str],
    world: World,
    name: str,
    spoiling: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It settles and appends after this one has seen that there is no manifest."""
    other, attempt = Attempt(over_http), Attempt(over_http)
    others, ours = other.stage(ROWS[::-1], tasks=3), attempt.stage(ROWS)

    def overtaken(*asked: Any) -> str | None:
        monkeypatch.undo()
        spoiling(posts_fail("after", behind=3))
        with pytest.raises(NotPublished):
            other.publish(others)
        spoiling(lambda *_: None)
        return HttpPublisher.find_use(*asked)

    monkeypatch.setattr(HttpPublisher, "find_use", overtaken)
    attempt.publish(ours)
    assert messages(world, name) == ROWS[::-1]


def test_a_server_that_takes_an_append_out_of_order_is_not_written_to(tmp_path: Path) -> None:
    async def takes_all(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    with ThreadedServer(takes_all) as server:
        attempt = Attempt({"url": server.url, "stream": "s", "stagingDir": str(tmp_path), "producerId": "p"})
        with pytest.raises(NotPublished, match=r"does not know Producer-Seq"):
            attempt.publish(attempt.stage(ROWS))
    assert [method for method, _ in server.seen].count("POST") == 1


def test_appends_are_on_their_way_while_earlier_ones_are_not_answered(tmp_path: Path) -> None:
    """The server answers the second one when the third has come."""
    came: list[int] = []
    third = asyncio.Event()

    async def answers_late(scope: Any, receive: Any, send: Any) -> None:
        headers, status = [(b"content-type", b"text/plain"), (b"content-length", b"0")], 200
        if scope["method"] == "POST":
            seq = int(dict(scope["headers"])[b"producer-seq"])
            if seq == PROBE_SEQ:
                headers, status = [*headers, (b"producer-expected-seq", b"0")], 409
            else:
                came.append(seq)
            if seq == 2:
                third.set()
            if seq == 1:
                await third.wait()
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    with ThreadedServer(answers_late) as server:
        attempt = Attempt({"url": server.url, "stream": "s", "stagingDir": str(tmp_path), "producerId": "p"})
        attempt.publish(attempt.stage(ROWS[:100]))
    assert sorted(came) == list(range(100))


@pytest.mark.parametrize("fault", ["before", "after"])
def test_rows_that_are_not_json_arrive_once_and_in_order_whatever_is_lost_on_the_way(
    world: World,
    server: ThreadedServer,
    name: str,
    tmp_path: Path,
    spoiling: Callable[..., None],
    fault: str,
) -> None:
    """What was sent ahead of a lost append is refused as a gap, and sent again."""
    filled(world, name, content_type=BYTES)
    seen: set[str] = set()

    def loses(method: str, _path: str, headers: dict[str, str]) -> str | None:
        seq = headers.get("producer-seq", "0")
        is_first = is_append(method, headers) and seq not in seen
        seen.add(seq)
        return fault if is_first and int(seq) % 23 == 0 else None

    spoiling(loses)
    attempt = Attempt(
        {"url": server.url, "stream": name, "stagingDir": str(tmp_path), "producerId": name},
        retrySeconds="60",
    )
    assert sum(run.appends for run in attempt.publish(attempt.stage(ROWS[:300])).runs) == 300
    assert world.process().read_all(key(name)) == b"".join(ROWS[:300])


def test_the_table_gets_many_appends_with_one_call(
    world: World, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(world, name, content_type=BYTES)
    groups: list[int] = []

    def counting(stores: Any, stream: Any, requests: Any) -> Any:
        groups.append(len(requests))
        return append(stores, stream, requests)

    monkeypatch.setattr("tidemark.spark.writer.publish.append", counting)
    where = table_options(world) | {"stream": name, "stagingDir": str(tmp_path), "producerId": name}
    attempt = Attempt(where)
    attempt.publish(attempt.stage([*ROWS[:150], b"x" * 100_000, b"y" * 100_000]))
    # The first is the question for what is there.
    assert groups == [1, 64, 64, 23, 1]
    assert len(read_here(table_options(world), subscribe=name)) == 152


@pytest.mark.parametrize("every", [1, 2, 3])
def test_lost_replies_append_nothing_twice(
    over_http: dict[str, str], world: World, name: str, spoiling: Callable[..., None], every: int
) -> None:
    seen: dict[str, int] = {}

    def loses(method: str, path: str, headers: dict[str, str]) -> str | None:
        if not is_append(method, headers):
            return None
        seq = headers["producer-seq"]
        seen[seq] = seen.get(seq, 0) + 1
        return "after" if seen[seq] == 1 and int(seq) % every == 0 else None

    spoiling(loses)
    attempt = Attempt(over_http, retrySeconds="20")
    attempt.publish(attempt.stage(ROWS))
    assert messages(world, name) == ROWS
    assert sum(count > 1 for count in seen.values()) == -(-len(seen) // every)


def test_lost_replies_of_the_table_append_nothing_twice(
    world: World, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support import Faults
    from tidemark.aws import dynamodb as thin
    from tidemark.spark.clients import storage

    filled(world, name, content_type=JSON)
    made: list[Faults] = []
    connect = thin.connect_dynamodb

    def breaking(account: Any, *, endpoint: str | None = None) -> Any:
        dynamodb = connect(account, endpoint=endpoint)
        made.append(Faults(dynamodb, 7, lost=0.2, throttled=0.1))
        return dynamodb

    monkeypatch.setattr(storage, "connect_dynamodb", breaking)
    attempt = Attempt(
        table_options(world)
        | {"stream": name, "stagingDir": str(tmp_path), "producerId": name, "bytesPerAppend": "500"}
    )
    attempt.publish(attempt.stage(ROWS))
    assert messages(world, name) == ROWS
    assert sum(faults.injected["lost"] for faults in made) > 0


def test_a_batch_that_is_done_is_not_published_again(target: dict[str, str], world: World, name: str) -> None:
    """The commit came through and Spark did not learn of it; the staged files are gone by then."""
    attempt = Attempt(target)
    attempt.publish(attempt.stage(ROWS))
    again = Attempt(target)
    again.publish(again.stage(ROWS[::-1], tasks=2))
    assert messages(world, name) == ROWS


def test_batches_follow_each_other_and_the_notes_of_older_ones_are_removed(
    target: dict[str, str], world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a killed task staged a day ago."""
    monkeypatch.setattr(manifest, "KEPT", 2)
    root = Path(target["stagingDir"])
    old = root / "staged" / name / "of-a-killed-task"
    old.parent.mkdir(parents=True)
    old.touch()
    os.utime(old, (0, 0))
    for batch, low in enumerate((0, 300, 600)):
        attempt = Attempt(target)
        attempt.publish(attempt.stage(ROWS[low : low + 300]), batch)
    assert messages(world, name) == ROWS[:900]
    left = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert left == {f"{name}/{kind}/{batch:016d}" for kind in ("done", "manifest") for batch in (1, 2)}


def test_a_driver_that_was_replaced_is_fenced_off(target: dict[str, str], world: World, name: str) -> None:
    zombie = Attempt(target)
    staged = zombie.stage(ROWS[:300])
    for batch in (0, 1):
        attempt = Attempt(target)
        attempt.publish(attempt.stage(ROWS[batch * 300 :][:300]), batch)
    StagedBatches(DirectoryStaging(Path(target["stagingDir"])), name)._staging.delete(
        [f"{name}/done/{0:016d}", f"{name}/manifest/{0:016d}"]
    )
    with pytest.raises(ReusedId, match=f"{name} has batch 1 of .*another driver"):
        zombie.publish(staged, 0)
    assert messages(world, name) == ROWS[:600]


def test_two_drivers_at_once_publish_one_batch(target: dict[str, str], world: World, name: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    attempts = [Attempt(target), Attempt(target, bytesPerAppend="700")]
    staged = [attempts[0].stage(ROWS), attempts[1].stage(ROWS[::-1], tasks=3)]
    results: list[object] = []
    with ThreadPoolExecutor(2) as pool:
        for future in [
            pool.submit(attempt.publish, each) for attempt, each in zip(attempts, staged, strict=True)
        ]:
            try:
                results.append(future.result())
            except (FileNotFoundError, NotPublished) as fault:
                # The other was done first and has given the space back.
                results.append(fault)
    assert messages(world, name) in (ROWS, ROWS[::-1])
    assert any(isinstance(result, Manifest) for result in results)


def test_a_producer_id_belongs_to_one_query(target: dict[str, str], name: str) -> None:
    attempt = Attempt(target)
    attempt.publish(attempt.stage(ROWS[:10]))
    (staged,) = attempt.stage(ROWS[10:20], tasks=1)
    with pytest.raises(ForeignBatch, match="needs a new producerId"):
        attempt.publish([replace(staged, query="query-2")])


def test_nothing_is_left_in_the_staging_directory_but_the_notes(target: dict[str, str], name: str) -> None:
    attempt = Attempt(target)
    staged = attempt.stage(ROWS)
    # Where a file system may forget bodies, and no notes.
    assert [path.name for path in Path(target["stagingDir"]).iterdir()] == ["staged"]
    attempt.publish(staged)
    again = Attempt(target)
    again.publish(again.stage(ROWS))
    lost = Attempt(target)
    lost.write.discard(lost.stage(ROWS), 1)
    files = sorted(
        str(path.relative_to(target["stagingDir"]))
        for path in Path(target["stagingDir"]).rglob("*")
        if path.is_file()
    )
    assert files == [f"{name}/done/{0:016d}", f"{name}/manifest/{0:016d}"]


def test_an_abort_keeps_the_files_that_the_manifest_names(
    over_http: dict[str, str], world: World, name: str, spoiling: Callable[..., None]
) -> None:
    """Spark aborts a batch write whose commit failed; the manifest's files are still needed."""
    attempt = Attempt(over_http)
    staged = attempt.stage(ROWS)
    spoiling(posts_fail("before", behind=0))
    with pytest.raises(NotPublished):
        attempt.publish(staged)
    attempt.write.discard(staged, 0)
    spoiling(lambda *_: None)
    attempt.publish(attempt.stage(ROWS, tasks=2))
    assert messages(world, name) == ROWS


@pytest.mark.parametrize("transport", ["http", "dynamodb"])
def test_several_streams_by_a_column(
    transport: str, world: World, server: ThreadedServer, name: str, tmp_path: Path
) -> None:
    where = {"url": server.url} if transport == "http" else table_options(world)
    options = where | {
        "streamColumn": "stream",
        "contentType": "application/json",
        "createStreams": "true",
        "stagingDir": str(tmp_path),
        "producerId": name,
        "bytesPerAppend": "200",
    }
    write = make_write(parse_write_options(options), SCHEMA)
    streams = [f"{name}-{index % 7}" for index in range(1000)]
    pieces = [
        (pa.array(streams[start : start + 90]), pa.array(ROWS[start : start + 90]))
        for start in range(0, 1000, 90)
    ]
    write.publish([write.stage(iter(pieces))], 0)
    for index in range(7):
        assert messages(world, f"{name}-{index}") == ROWS[index::7]


def test_a_write_of_no_rows_creates_its_stream(target: dict[str, str], world: World, name: str) -> None:
    made = target | {"stream": f"{name}-new", "contentType": "text/plain", "createStreams": "true"}
    for staged in (_empty(made), []):
        assert Attempt(made).publish(staged).rows == 0
        made_stream = load_head(world.process().stores, key(f"{name}-new")).record
        assert made_stream.content_type.essence == "text/plain"
        delete(world.process().stores, key(f"{name}-new"))


@pytest.mark.parametrize("joined", [True, False])
def test_bytes_are_one_message_a_row_unless_they_are_joined(
    world: World, server: ThreadedServer, name: str, tmp_path: Path, joined: bool
) -> None:
    filled(world, name, content_type=BYTES)
    bodies = [bytes([index]) * (index % 5 + 1) for index in range(100)]
    options = {"url": server.url, "stream": name, "stagingDir": str(tmp_path), "producerId": name}
    attempt = Attempt(options, joinRows=str(joined))
    published = attempt.publish(attempt.stage(bodies, tasks=3))
    assert world.process().read_all(key(name)) == b"".join(bodies)
    assert sum(run.appends for run in published.runs) == (3 if joined else 100)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([b"1", b"{"], r"row 1 of partition 0: not JSON .*: b'{'"),
        ([b"[1", b"2],3"], r"row 0 of partition 0: not JSON"),
        ([b"1,2"], r"row 0 .*not JSON"),
        ([b"1", None], r"row 1 .*null"),
        ([b"1", b""], r"row 1 .*not JSON"),
        ([b'"' + b"x" * 4 * 1024 * 1024 + b'"'], r"row 0 .*more than one append"),
        ([b"1"] * 150 + [b"nan"], r"row 150 of partition 0"),
    ],
)
def test_an_invalid_row_is_named_before_anything_is_appended(
    over_http: dict[str, str], world: World, name: str, rows: list[bytes], what: str
) -> None:
    with pytest.raises(BadRow, match=what):
        Attempt(over_http).stage(rows, tasks=1)
    assert messages(world, name) == []


def test_a_wrong_target_stream_is_refused_before_a_task_starts(
    over_http: dict[str, str], world: World, name: str
) -> None:
    with pytest.raises(InvalidOptions, match="no such stream: nowhere"):
        Attempt(over_http, stream="nowhere")
    with pytest.raises(InvalidOptions, match="is application/json, not text/plain"):
        Attempt(over_http, contentType="text/plain")
    world.process().append(key(name), close=True)
    with pytest.raises(InvalidOptions, match="is closed"):
        Attempt(over_http)


def test_all_wrong_options_of_a_write_are_named_in_one_error(over_http: dict[str, str]) -> None:
    """Options, mode and columns."""
    schema = StructType([StructField("body", StringType())])
    given = over_http | {"bytesPerAppend": "0", "steam": "x", "batch": "1"}
    with pytest.raises(InvalidOptions) as refused:
        parse_write(given, schema, overwrite=True, streaming=True)
    assert refused.value.faults == [
        "unknown option steam (did you mean stream?)",
        "bytesPerAppend: must be a whole number of bytes above 0, got '0'",
        "batch is for writes in foreachBatch: the sink of a streaming query numbers its own",
        "overwrite is refused: a stream is only ever appended to; use mode append",
        "there is no column value; columns: body",
    ]


def test_a_stream_that_is_gone_when_it_is_published_to_is_named(
    over_http: dict[str, str], world: World, name: str
) -> None:
    attempt = Attempt(over_http)
    staged = attempt.stage(ROWS)
    delete(world.process().stores, key(name))
    with pytest.raises(NotPublished, match=f"no such stream: {name}"):
        attempt.publish(staged)


@pytest.fixture(params=["directory", "bucket"])
def staging(request: pytest.FixtureRequest, world: World, tmp_path: Path, name: str) -> Iterator[Staging]:
    if request.param == "directory":
        yield DirectoryStaging(tmp_path)
        return
    client = s3_client(os.environ["AWS_ENDPOINT_URL_S3"], None)
    yield BucketStaging(client, world.bucket_name, f"staging/{name}")
    client.close()


def test_a_staging_place_keeps_its_promises(staging: Staging) -> None:
    with staging.create("a/b") as file:
        file.write(b"0123456789")
        assert staging.get("a/b") is None
    assert staging.read("a/b", 3, 4) == b"3456"

    def fail_half_way() -> None:
        with staging.create("a/c") as file:
            file.write(b"half")
            raise RuntimeError("x")

    with pytest.raises(RuntimeError, match="x"):
        fail_half_way()
    assert staging.get("a/c") is None
    assert staging.put_first("m", b"one") == b"one"
    assert staging.put_first("m", b"two") == b"one"
    assert staging.get("m") == b"one"
    assert staging.older_than("a", -60) == ["a/b"]
    assert staging.older_than("a", 60) == []
    with staging.create("ab/c"):
        pass
    assert staging.older_than("a", -60) == ["a/b"]
    staging.delete(["m", "a/b", "never was"])
    assert staging.get("m") is None


def test_a_staged_name_is_synced_with_its_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power takes a manifest of which something is published already."""
    synced: list[str] = []
    sync = os.fsync

    def noting(file: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{file}").readlink()).removeprefix(str(tmp_path)))
        sync(file)

    monkeypatch.setattr(os, "fsync", noting)
    staging = DirectoryStaging(tmp_path)
    for _ in range(2):
        synced.clear()
        staging.put_first("id/manifest/0", b"x")
        assert synced[1:] == ["/id/manifest", "/id", ""]
    synced.clear()
    with staging.create("id/staged/f"):
        pass
    assert synced[1:] == ["/id/staged", "/id", ""]


def test_a_manifest_reads_back_as_it_was_written() -> None:
    settled = Manifest("q", (AppendRun("s", "f", 0, 11, 2, 3), AppendRun("t", "f", 11, 8, 1, 1)))
    assert decode_manifest(encode_manifest(settled)) == settled
    assert manifest.KEPT > 1
