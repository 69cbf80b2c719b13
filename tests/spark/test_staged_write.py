"""The staged write, step by step: whatever is repeated, and however differently, lands once."""

import asyncio
import io
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from tests.spark.serving import ThreadedServer, is_append, posts_fail
from tests.spark.streams import Streams
from tests.support import JSON, World
from tidemark.service.load import load_head
from tidemark.spark import staging as files
from tidemark.spark.options import InvalidOptions
from tidemark.spark.staging import BucketStaging, DirectoryStaging, Staging, decode_bodies, encode_body
from tidemark.spark.storage import s3_client
from tidemark.spark.writer import chunks, manifest
from tidemark.spark.writer.chunks import BadRow
from tidemark.spark.writer.manifest import AppendRun, Fingerprint, ForeignBatch, Manifest, ReusedId
from tidemark.spark.writer.publish import PROBE_SEQ, NotPublished, Publisher
from tidemark.spark.writer.writers import StagedPartition, StagedWrite, plan_write

SCHEMA = StructType([StructField("stream", StringType()), StructField("value", BinaryType())])
ROWS = [orjson.dumps({"n": index}) for index in range(400)]
NUMBERS = [{"n": index} for index in range(400)]

Options = dict[str, str]


@pytest.fixture
def target(streams: Streams, tmp_path: Path) -> Options:
    """Writes to the stream, which is there; every hundred rows are a dozen appends."""
    streams.fill(content_type=JSON)
    where = {"stream": streams.name, "producerId": streams.name, "stagingDir": str(tmp_path / "staging")}
    return where | {"url": streams.server.url, "bytesPerAppend": "100"}


def write_with(options: Options, **more: str) -> StagedWrite:
    return plan_write(options | more, SCHEMA)


def stage(write: StagedWrite, rows: list[Any], *, tasks: int = 4) -> list[StagedPartition]:
    """As the tasks of a streaming query do it."""
    size = -(-len(rows) // tasks) or 1
    staged = []
    for number, start in enumerate(range(0, len(rows) or 1, size)):
        part = rows[start : start + size]
        pieces = [part[low : low + 70] for low in range(0, len(part), 70)]
        arrays = ((write.options.stream or "", pa.array(piece, pa.binary())) for piece in pieces)
        staged.append(replace(write.stage(arrays), query="query-1", partition=number))
    return staged


def publish(options: Options, rows: list[bytes], batch: int = 0, *, tasks: int = 4, **more: str) -> Manifest:
    """A whole attempt at a batch."""
    write = write_with(options, **more)
    return write.publish(stage(write, rows, tasks=tasks), batch)


def files_in(directory: str) -> set[str]:
    root = Path(directory)
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_rows_arrive_in_order_and_once_and_leave_notes_alone(target: Options, streams: Streams) -> None:
    write, root = write_with(target), Path(target["stagingDir"])
    staged = stage(write, ROWS)
    # Where a file system may forget bodies, and no notes.
    assert [path.name for path in root.iterdir()] == ["staged"]
    runs = [run for each in staged for run in each.runs]
    sizes = [len(body) for run in runs for body in bodies_in(root, run)]
    published = write.publish(staged, 0)
    assert streams.values() == NUMBERS
    assert (published.rows, sum(run.appends for run in published.runs)) == (400, len(sizes))
    assert 90 < max(sizes) <= 100
    assert len(published.runs) == 4, "the manifest names a task's appends to a stream once"
    # Spark does not learn of the commit, and repeats it.
    publish(target, ROWS[::-1], tasks=2)
    lost = write_with(target)
    lost.discard(stage(lost, ROWS), 1)
    assert streams.values() == NUMBERS
    assert files_in(target["stagingDir"]) == {
        f"{streams.name}/{kind}/{0:016d}" for kind in ("done", "manifest")
    }


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
    assert list(decode_bodies(lambda place, size: data[place : place + size], 6, length)) == expected
    with pytest.raises(EOFError):
        list(decode_bodies(lambda place, size: data[: 5 + length][place : place + size], 6, length))


#: What a query brings when it repeats a batch: the rows, in how many tasks, and its options.
REPLAYS: dict[str, tuple[list[bytes], int, Options]] = {
    "as it was": (ROWS, 4, {}),
    "rows in another order": (ROWS[::-1], 4, {}),
    "other partition sizes": (ROWS, 7, {}),
    "other append sizes": (ROWS, 4, {"bytesPerAppend": "321"}),
    "fewer rows": (ROWS[:100], 4, {}),
    "no rows": ([], 1, {}),
}


@pytest.mark.parametrize(
    ("replay", "landed"),
    [*((replay, 5) for replay in REPLAYS), *(("as it was", some) for some in (0, 1, 17))],
)
def test_a_failed_commit_is_repeated_exactly(
    target: Options, streams: Streams, spoiling: Callable[..., None], replay: str, landed: int
) -> None:
    """The server went away after some of the appends, and what is repeated is not what was staged first. The
    checkpoint cannot have meant other rows, unless the query is told so."""
    first = write_with(target, retrySeconds="0")
    staged = stage(first, ROWS)
    spoiling(posts_fail("before", behind=landed))
    with pytest.raises(NotPublished, match=f"append {landed} of batch 0"):
        first.publish(staged, 0)
    # Spark aborts a batch whose commit failed: the files that its manifest names are still needed.
    first.discard(staged, 0)
    assert len(streams.stored()) < len(b",".join(ROWS))
    spoiling(lambda *_: None)
    rows, tasks, more = REPLAYS[replay]
    if len(rows) < len(ROWS):
        with pytest.raises(ReusedId, match=f"restored or copied.* resume=true and producerId={streams.name}"):
            publish(target, rows, tasks=tasks)
        more = {"resume": "true"}
    publish(target, rows, 0, tasks=tasks, **more)
    assert streams.values() == NUMBERS


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
    target: Options, streams: Streams, batch: int, rows: list[bytes], resume: str, what: str
) -> None:
    """Taken for a repetition, the batch would leave rows out, and the run would succeed."""
    for number in range(3):
        publish(target, ROWS[number * 100 :][:100], number)
    with pytest.raises(ReusedId, match=what):
        publish(target, rows, batch, resume=resume)
    # The newest batch, whose commit Spark did not learn of, is still a repetition.
    publish(target, ROWS[200:300][::-1], 2, tasks=3)
    assert streams.values() == NUMBERS[:300]


def test_a_batch_in_the_stream_and_not_in_staging_is_refused(target: Options, streams: Streams) -> None:
    """The directory was emptied between publish and commit, or another driver is further on. Cut into other
    appends, rows would be missing or doubled."""
    publish(target, ROWS[:100])
    publish(target, ROWS[100:200], 1)
    shutil.rmtree(target["stagingDir"])
    for batch, rows, what in (
        (1, ROWS[100:200], r"has appends 0 to \d+ of batch 1 .*startingOffsets"),
        (0, ROWS[:100], r"has batch 1 .*another driver"),
    ):
        write = write_with(target, bytesPerAppend="50", resume="true")
        staged = stage(write, rows)
        for _ in range(2):
            with pytest.raises(ReusedId, match=f"{streams.name} {what}"):
                write.publish(staged, batch)
    # A batch that was committed needs no notes any more.
    publish(target, ROWS[200:300], 2)
    assert streams.values() == NUMBERS[:300]


def test_a_batch_that_another_driver_has_begun_meanwhile_is_followed(
    target: Options, streams: Streams, spoiling: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It settles and appends after this one has seen that there is no manifest."""

    def overtaken(*asked: Any) -> str | None:
        monkeypatch.undo()
        spoiling(posts_fail("after", behind=3))
        with pytest.raises(NotPublished):
            publish(target, ROWS[::-1], tasks=3, retrySeconds="0")
        spoiling(lambda *_: None)
        return Publisher.find_use(*asked)

    monkeypatch.setattr(Publisher, "find_use", overtaken)
    publish(target, ROWS)
    assert streams.values() == NUMBERS[::-1]


async def answer(send: Any, status: int, *headers: tuple[bytes, bytes]) -> None:
    told = [(b"content-type", b"text/plain"), (b"content-length", b"0"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": b""})


def test_a_server_that_takes_an_append_out_of_order_is_not_written_to(tmp_path: Path) -> None:
    async def takes_all(_scope: Any, _receive: Any, send: Any) -> None:
        await answer(send, 200)

    with ThreadedServer(takes_all) as server:
        options = {"url": server.url, "stream": "s", "stagingDir": str(tmp_path), "producerId": "p"}
        with pytest.raises(NotPublished, match=r"does not know Producer-Seq"):
            publish(options, ROWS)
    assert [method for method, _ in server.seen].count("POST") == 1


def test_appends_are_on_their_way_while_earlier_ones_are_not_answered(tmp_path: Path) -> None:
    """The server answers the second one when the third has come."""
    came: list[int] = []
    third = asyncio.Event()

    async def answers_late(scope: Any, _receive: Any, send: Any) -> None:
        seq = int(dict(scope["headers"]).get(b"producer-seq", -1))
        if seq == PROBE_SEQ:
            await answer(send, 409, (b"producer-expected-seq", b"0"))
            return
        came.extend([seq] if seq >= 0 else [])
        if seq == 2:
            third.set()
        if seq == 1:
            await third.wait()
        await answer(send, 200)

    with ThreadedServer(answers_late) as server:
        options = {"url": server.url, "stream": "s", "stagingDir": str(tmp_path), "producerId": "p"}
        publish(options, ROWS[:100])
    assert sorted(came) == list(range(100))


@pytest.mark.parametrize(("fault", "every"), [("before", 23), ("after", 23), ("after", 1)])
def test_appends_arrive_once_and_in_order_whatever_is_lost_on_the_way(
    target: Options, streams: Streams, spoiling: Callable[..., None], fault: str, every: int
) -> None:
    """What was sent ahead of a lost append is refused as a gap, and sent again."""
    streams.fill(suffix="-bytes")
    seen: Counter[str] = Counter()

    def loses(method: str, _path: str, headers: dict[str, str]) -> str | None:
        if not is_append(method, headers):
            return None
        seq = headers["producer-seq"]
        seen[seq] += 1
        return fault if seen[seq] == 1 and int(seq) % every == 0 else None

    spoiling(loses)
    published = publish(target, ROWS[:200], stream=f"{streams.name}-bytes", retrySeconds="600")
    assert sum(run.appends for run in published.runs) == 200
    assert streams.stored("-bytes") == b"".join(ROWS[:200])
    assert sum(count > 1 for count in seen.values()) >= -(-200 // every)


def test_the_notes_of_older_batches_are_removed_and_what_a_killed_task_staged_a_day_ago(
    target: Options, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "KEPT", 2)
    old = Path(target["stagingDir"], "staged", streams.name, "of-a-killed-task")
    old.parent.mkdir(parents=True)
    old.touch()
    os.utime(old, (0, 0))
    for batch in range(3):
        publish(target, ROWS[batch * 100 :][:100], batch)
    assert streams.values() == NUMBERS[:300]
    notes = {f"{streams.name}/{kind}/{batch:016d}" for kind in ("done", "manifest") for batch in (1, 2)}
    assert files_in(target["stagingDir"]) == notes


def test_a_producer_id_belongs_to_one_query(target: Options) -> None:
    publish(target, ROWS[:10])
    other = write_with(target)
    (staged,) = stage(other, ROWS[10:20], tasks=1)
    with pytest.raises(ForeignBatch, match="needs a new producerId"):
        other.publish([replace(staged, query="query-2")], 0)


def test_several_streams_by_a_column(target: Options, streams: Streams) -> None:
    options = {name: text for name, text in target.items() if name != "stream"}
    options |= {"streamColumn": "stream", "contentType": "application/json", "createStreams": "true"}
    write = write_with(options)
    names = [f"{streams.name}-{index % 7}" for index in range(len(ROWS))]
    pieces = ((pa.array(names[low : low + 90]), pa.array(ROWS[low : low + 90])) for low in range(0, 400, 90))
    write.publish([write.stage(pieces)], 0)
    assert [streams.values(f"-{index}") for index in range(7)] == [NUMBERS[index::7] for index in range(7)]


@pytest.mark.parametrize("named", ["", "..", "a/../b", "a//b", "a\0b", "a\nb", "__ds/x", "x" * 1001])
def test_a_row_for_what_no_stream_can_be_named_is_refused_in_its_task(target: Options, named: str) -> None:
    """A server would refuse it in every commit, take it for another stream's (`a/../b` is `b` in a URL), or
    never find what was written to the table."""
    options = {name: text for name, text in target.items() if name != "stream"}
    write = write_with(options, streamColumn="stream", contentType="application/json", createStreams="true")
    rows = pa.array(["a 50%?ü/b", named]), pa.array([b"1", b"2"])
    with pytest.raises(BadRow, match="cannot be a stream's name"):
        write.stage([rows])


def test_a_write_of_no_rows_creates_its_stream(target: Options, streams: Streams) -> None:
    new = {"stream": f"{streams.name}-new", "contentType": "text/plain", "createStreams": "true"}
    for staged_by_a_task in (True, False):
        write = write_with(target, **new)
        assert write.publish(stage(write, [], tasks=1) if staged_by_a_task else [], 0).rows == 0
        made = load_head(streams.process.stores, streams.key("-new")).record
        assert made.content_type.essence == "text/plain"
        streams.delete("-new")


def test_bytes_are_one_message_a_row(target: Options, streams: Streams) -> None:
    streams.fill(suffix="-bytes")
    bodies = [bytes([index]) * (index % 5 + 1) for index in range(100)]
    options = target | {"stream": f"{streams.name}-bytes", "bytesPerAppend": "1000"}
    published = publish(options, bodies, tasks=3)
    assert streams.stored("-bytes") == b"".join(bodies)
    assert sum(run.appends for run in published.runs) == 100


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([b"1", b"{"], r"row 1 of partition 0: not JSON .*: b'{'"),
        ([b"[1", b"2],3"], r"row 0 of partition 0: not JSON"),
        ([b"1,2"], r"row 0 .*not JSON"),
        ([b"1"] * 1100 + [b"1,2"], r"row 1100 .*not JSON"),
        ([b"1", b"[" * 501 + b"]" * 501], r"row 1 .*500 levels"),
        ([b"1e400"], r"row 0 .*beyond the range of a double"),
        ([b"1", None], r"row 1 .*null"),
        ([b"1", b""], r"row 1 .*not JSON"),
        ([b'"' + b"x" * 4 * 1024 * 1024 + b'"'], r"row 0 .*more than one append"),
        ([b"1"] * 150 + [b"nan"], r"row 150 of partition 0"),
    ],
)
def test_an_invalid_row_is_named_before_appends(target: Options, rows: list[bytes | None], what: str) -> None:
    with pytest.raises(BadRow, match=what):
        stage(write_with(target), rows, tasks=1)


def test_rows_are_what_the_server_takes_for_json(target: Options, streams: Streams) -> None:
    """White space around a row goes, and a lone surrogate stays, as in an append over HTTP."""
    publish(target, [b' {"a": 1}\n', b'"\\ud800"', b"[" * 500 + b"]" * 500])
    stored = b'{"a": 1},"\\ud800",' + b"[" * 500 + b"]" * 500 + b","
    assert streams.stored().endswith(stored)


def test_an_append_has_no_more_rows_than_the_server_takes_messages(
    target: Options, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte has room for half a million rows of one byte."""
    monkeypatch.setattr(chunks, "MAX_MESSAGES", 150)
    published = publish(target, ROWS, tasks=1, bytesPerAppend="1000000")
    assert [run.appends for run in published.runs] == [3]
    assert streams.values() == NUMBERS


def test_rows_that_fill_the_largest_append_fit_the_server(target: Options, streams: Streams) -> None:
    """With its brackets: two rows that would be one byte too many together are two appends."""
    half = 2 * 1024 * 1024
    rows = [b'"%s"' % (b"x" * (size - 3)) for size in (half, half)]
    assert sum(len(row) + 1 for row in rows) == 2 * half
    assert [run.appends for run in publish(target, rows, tasks=1, bytesPerAppend=str(2 * half)).runs] == [2]
    assert list(map(len, streams.values())) == [half - 3] * 2


def test_a_wrong_target_stream_is_refused(target: Options, streams: Streams) -> None:
    """Before a task starts; or, if it is gone by then, before anything is published."""
    with pytest.raises(InvalidOptions, match="no such stream in v1: nowhere"):
        write_with(target, stream="nowhere")
    with pytest.raises(InvalidOptions, match="is application/json, not text/plain"):
        write_with(target, contentType="text/plain")
    write = write_with(target)
    streams.append(b"", close=True)
    with pytest.raises(InvalidOptions, match="is closed"):
        write_with(target)
    staged = stage(write, ROWS)
    streams.delete()
    with pytest.raises(NotPublished, match=f"no such stream in v1: {streams.name}"):
        write.publish(staged, 0)


def test_a_complete_batch_may_be_repeated_in_a_closed_stream(target: Options, streams: Streams) -> None:
    """In `foreachBatch`; the next one has no place to go to."""
    publish(target, ROWS, 3)
    streams.append(b"", close=True)
    write = write_with(target, batch="3")
    write.publish(stage(write, ROWS), 3)
    assert streams.values() == NUMBERS
    with pytest.raises(InvalidOptions, match="is closed"):
        write_with(target, batch="4")


def test_all_wrong_options_of_a_write_are_named_in_one_error(target: Options) -> None:
    """Options, mode and columns."""
    schema = StructType([StructField("body", StringType())])
    given = target | {"bytesPerAppend": "0", "steam": "x", "batch": "1"}
    with pytest.raises(InvalidOptions) as refused:
        plan_write(given, schema, overwrite=True, streaming=True)
    assert refused.value.faults == [
        "unknown option steam (did you mean stream?)",
        "bytesPerAppend: must be a whole number of bytes above 0, got '0'",
        "batch is for writes in foreachBatch: the sink of a streaming query numbers its own",
        "overwrite is refused: a stream is only ever appended to; use mode append",
        "there is no column value; columns: body",
    ]


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
    with staging.create("ab/c"):
        pass
    assert staging.older_than("a", -3600) == ["a/b"]
    assert staging.older_than("a", 3600) == []
    staging.delete(["m", "a/b", "never was"])
    assert staging.get("m") is None


def test_a_staged_name_is_synced_with_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    runs = (AppendRun("s", "f", 0, 11, 2, 3), AppendRun("t", "f", 11, 8, 1, 1))
    for fingerprint in (None, Fingerprint("there", {"s": 3, "t": 1}, 7)):
        settled = Manifest("q", runs, fingerprint)
        assert msgspec.json.decode(msgspec.json.encode(settled), type=manifest.Manifest) == settled
    assert manifest.KEPT > 1
