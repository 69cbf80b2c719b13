"""The jobs, as `spark-submit` would start them but in the tests' own session."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from tests.infra.jobs import load_job
from tests.spark.lakes import Lake
from tests.spark.opaque import OpaqueServer, token
from tests.spark.serving import ThreadedServer
from tests.spark.streams import filled, key
from tests.support import BYTES, JSON, World
from tidemark.log.lifecycle import load_stream
from tidemark.log.schema import log_pk
from tidemark.protocol.offset import render_offset
from tidemark.service.delete import delete
from tidemark.spark.failures import Exit, explain_failure
from tidemark.spark.job import Job, parse_arguments, watched
from tidemark.spark.queries.checkpoints import taken_progress

ROOT = Path(__file__).parents[2]
JOBS = ("archive", "compact", "ingest", "replay", "snapshot", "stats", "trim")


def test_archive_and_replay_give_the_same_bytes(
    start: Callable[..., tuple[int, str, str]],
    spark: Any,
    world: World,
    name: str,
    where: list[str],
    tmp_path: Path,
) -> None:
    """Incremental, and after a failure between two runs; JSON as it was written, and large bodies."""
    filled(world, f"{name}-json", b'[{"a": 1.0}, "x"]', b' {"b" : [1, 2]} ', content_type=JSON)
    filled(world, f"{name}-bytes", b"one", bytes(range(256)) * 400, b"three", content_type=BYTES)
    out, checkpoint = str(tmp_path / "archive"), str(tmp_path / "checkpoint")
    archive = ["archive", *where, "--pattern", f"{name}-.*", "--out", out, "--checkpoint", checkpoint]
    assert "messages=6" in start(*archive)[1]
    world.process().append(key(f"{name}-json"), b"[3]", content_type=JSON)
    assert "messages=1" in start(*archive)[1]
    assert "messages=0" in start(*archive)[1]
    assert spark.read.parquet(out).count() == 7
    assert (tmp_path / "archive" / "bucket=v1" / "date=2027-01-15").is_dir()
    assert taken_progress(spark, checkpoint).positions[f"{name}-json"].offset == "0000000000000032"
    for kind in ("json", "bytes"):
        replay = [
            "replay",
            *where,
            "--archive",
            out,
            "--stream",
            f"{name}-{kind}",
            "--to",
            f"{name}-{kind}-again",
        ]
        replay += ["--staging", str(tmp_path / "staging"), "--id", f"{name}-{kind}"]
        for _ in range(2):
            code, said, _ = start(*replay)
            assert (code, "messages=" in said) == (0, True)
        process = world.process()
        assert process.read_all(key(f"{name}-{kind}-again")) == process.read_all(key(f"{name}-{kind}"))


def test_a_compacted_copy_of_the_archive_is_counted_right_by_any_reader(
    start: Callable[..., tuple[int, str, str]], world: World, name: str, where: list[str], tmp_path: Path
) -> None:
    """Also where a killed run left a file in the archive, and one of this job files beside the copy."""
    from pyarrow import dataset

    filled(world, f"{name}-a", b"one", b"two")
    archived, copied = tmp_path / "archive", tmp_path / "copy"
    archive = ["archive", *where, "--pattern", f"{name}-.*", "--out", str(archived)]
    compact = ["compact", "--archive", str(archived), "--to", str(copied)]

    def counted(directory: Path) -> int:
        return dataset.dataset(str(directory), format="parquet", partitioning="hive").count_rows()

    for number, body in enumerate((b"three", b"four", b"")):
        assert start(*archive, "--checkpoint", str(tmp_path / "checkpoint"))[0] == 0
        if number == 1:
            (some,) = sorted(archived.rglob("part-*.parquet"))[:1]
            shutil.copy(some, some.with_name("part-of-a-killed-run.parquet"))
            left = copied / ".spark-staging-killed" / "bucket=v1" / "date=2027-01-15"
            left.mkdir(parents=True)
            shutil.copy(some, left)
        if body:
            world.process().append(key(f"{name}-a"), body)
        code, said, err = start(*compact)
        assert (code, said[: said.index(" seconds")].split()[1::2]) == (
            0,
            [f"messages={number + 2}", "files_after=1"],
        ), err
        assert counted(copied) == number + 2
    assert counted(archived) > 4
    replay = ["replay", *where, "--archive", str(copied), "--stream", f"{name}-a", "--to", f"{name}-again"]
    assert start(*replay, "--staging", str(tmp_path / "staging"), "--id", name)[0] == 0
    assert world.process().read_all(key(f"{name}-again")) == b"onetwothreefour"


def test_archive_from_an_export(
    start: Callable[..., tuple[int, str, str]],
    spark: Any,
    world: World,
    name: str,
    where: list[str],
    tmp_path: Path,
) -> None:
    """The export is the table's own items, as DynamoDB writes them to S3."""
    filled(world, name, b"[1,2]", b"3", content_type=JSON)
    filled(world, f"{name}-b", b"x" * 70_000)
    process = world.process()
    items: list[Any] = []
    for stream in (name, f"{name}-b"):
        record = process.create(key(stream), content_type=JSON if stream == name else BYTES).head.record
        from tidemark.log.schema import encode_stream, log_pk

        items.append(encode_stream(record))
        items += process.stores.table.query(log_pk(record.key, record.incarnation))[0]
    items.append(
        {"pk": {"S": "log/v1/gone#x"}} | {name: value for name, value in items[1].items() if name != "pk"}
    )
    export = tmp_path / "export"
    export.mkdir()
    for number, half in enumerate((items[::2], items[1::2])):
        lines = b"".join(orjson.dumps({"Item": item}) + b"\n" for item in half)
        (export / f"{number}.json.gz").write_bytes(gzip.compress(lines))
    out = str(tmp_path / "out")
    code, said, _ = start("archive", *where, "--from-export", str(export), "--out", out)
    assert (code, "messages=4" in said) == (0, True)
    found = spark.read.parquet(out).orderBy("stream", "offset").collect()
    assert [bytes(row.value) for row in found] == [b"1", b"2", b"3", b"x" * 70_000]


def test_ingest(
    start: Callable[..., tuple[int, str, str]],
    spark: Any,
    server: ThreadedServer,
    world: World,
    name: str,
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "events")
    spark.range(0, 300, 1, 1).selectExpr("id", f"concat('{name}-', id % 3) as user").write.parquet(path)
    ingest = ["ingest", "--url", server.url, "--input", path, "--stream-column", "user", "--create"]
    ingest += ["--staging", str(tmp_path / "staging"), "--id", name]
    for _ in range(2):
        code, said, err = start(*ingest)
        assert (code, said.startswith("ingest: messages=300")) == (0, True), err
    for user in range(3):
        stored = world.process().read_all(key(f"{name}-{user}"))
        assert orjson.loads(b"[" + stored[:-1] + b"]") == [{"id": index} for index in range(user, 300, 3)]


def test_an_archive_is_made_in_batches_of_bounded_size(
    start: Callable[..., tuple[int, str, str]],
    spark: Any,
    world: World,
    server: ThreadedServer,
    name: str,
    where: list[str],
    tmp_path: Path,
) -> None:
    """By either transport, on every version of Spark: a run that fails goes on behind its last batch."""
    filled(world, name, *[bytes(3 * 1024 * 1024)] * 3)
    for transport, connection in (("http", ["--url", server.url]), ("dynamodb", where)):
        out = str(tmp_path / transport)
        archive = ["--subscribe", name, "--batch-bytes", "4000000", "--out", out]
        code, _, err = start(
            "archive", *connection, *archive, "--checkpoint", str(tmp_path / f"checkpoint-{transport}")
        )
        assert (code, err.count(": 1 messages" if transport == "dynamodb" else " messages")) == (0, 3), err
        assert spark.read.parquet(out).agg({"bytes": "sum"}).first()[0] == 9 * 1024 * 1024


def test_a_used_id_does_not_stand_for_another_write(
    start: Callable[..., tuple[int, str, str]],
    spark: Any,
    server: ThreadedServer,
    world: World,
    name: str,
    tmp_path: Path,
) -> None:
    """Neither for other rows nor for another stream; and the same write says that it was complete."""
    for file, rows in (("one", 3), ("two", 4)):
        spark.range(rows).write.json(str(tmp_path / file))
    ingest = ["ingest", "--url", server.url, "--format", "json", "--create", "--id", name]
    ingest += ["--staging", str(tmp_path / "staging")]
    one, two = (["--input", str(tmp_path / file)] for file in ("one", "two"))
    code, said, _ = start(*ingest, *one, "--stream", name)
    assert (code, "messages=3 streams=1" in said, "already" in said) == (0, True, False)
    code, said, err = start(*ingest, *one, "--stream", name)
    assert (code, "messages=3 streams=1" in said, "already_complete=true" in said) == (0, True, True)
    for other in ([*two, "--stream", name], [*one, "--stream", f"{name}-2"]):
        code, said, err = start(*ingest, *other)
        assert (code, said) == (Exit.YOUR_INPUT, "")
        assert f"producer id {name} was used for 3 rows to {name} of {server.url}" in err
        assert "give it an id of its own" in err
    stored = world.process().read_all(key(name))
    assert sorted(row["id"] for row in orjson.loads(b"[" + stored[:-1] + b"]")) == [0, 1, 2]


def test_a_stream_with_a_gap_is_replayed_only_if_that_is_allowed(
    start: Callable[..., tuple[int, str, str]],
    spark: Any,
    world: World,
    name: str,
    where: list[str],
    tmp_path: Path,
) -> None:
    filled(world, name, *[b"0123"] * 5)
    archive = [*where, "--subscribe", name, "--checkpoint", str(tmp_path / "c")]
    assert start("archive", *archive, "--out", str(tmp_path / "a"))[0] == 0
    whole = spark.read.parquet(str(tmp_path / "a"))
    whole.where("offset not in ('0000000000000008', '0000000000000000')").write.parquet(str(tmp_path / "b"))
    replay = ["replay", *where, "--archive", str(tmp_path / "b"), "--stream", name, "--to", f"{name}-again"]
    replay += ["--staging", str(tmp_path / "staging"), "--id", name]
    code, said, err = start(*replay)
    assert (code, said) == (Exit.YOUR_INPUT, "")
    assert "2 gaps, the first from the beginning to 0000000000000004" in err
    code, said, err = start(*replay, "--allow-gaps")
    assert (code, "messages=3" in said, "gaps=2" in said) == (0, True, True)
    assert "a gap from 0000000000000008 to 0000000000000012" in err
    assert world.process().read_all(key(f"{name}-again")) == b"0123" * 3


def test_an_archive_says_what_it_could_not_read(
    start: Callable[..., tuple[int, str, str]],
    spark: Any,
    world: World,
    name: str,
    where: list[str],
    tmp_path: Path,
) -> None:
    """A batch is gone, at the beginning and later; and a stream that was created again."""
    gone, again = f"{name}-gone", f"{name}-again"
    for stream in (gone, again):
        filled(world, stream, b"0123")
    archive = ["archive", *where, "--pattern", f"{name}-.*", "--out", str(tmp_path / "a")]
    archive += ["--checkpoint", str(tmp_path / "c"), "--option", "failOnDataLoss=false"]
    code, said, _ = start(*archive)
    assert (code, "messages=2 " in said, "streams_with_loss=0 lost_bytes=0" in said) == (0, True, True)
    process = world.process()
    record = load_stream(process.stores.table, key(gone))
    assert record is not None
    for body in (b"lost", b"here", b"lost and", b"there"):
        process.append(key(gone), body)
    for offset in (4, 12):
        item = {"pk": {"S": log_pk(record.key, record.incarnation)}, "sk": {"S": render_offset(offset)}}
        process.stores.table.delete(item)
    delete(process.stores, key(again))
    filled(world, again, b"another")
    code, said, err = start(*archive)
    assert code == Exit.DATA_LOST
    assert "messages=3 " in said
    assert "streams_with_loss=2 lost_bytes=12 " in said
    assert f"archive: {gone}: 12 bytes could not be archived" in err
    assert f"archive: {again}: what was not read when it was deleted and created again" in err
    # It is told once.
    code, said, _ = start(*archive)
    assert (code, "messages=0 " in said, "streams_with_loss=0 " in said) == (0, True, True)
    assert {row.bytes for row in spark.read.parquet(str(tmp_path / "a")).collect()} == {4, 5, 7}


def test_stats(
    start: Callable[..., tuple[int, str, str]], world: World, name: str, where: list[str], tmp_path: Path
) -> None:
    filled(world, f"{name}-a", b"[1,22,333]", content_type=JSON)
    filled(world, f"{name}-b", b"four")
    both = ["--pattern", f"{name}-."]
    archive = ["--out", str(tmp_path / "a"), "--checkpoint", str(tmp_path / "c")]
    assert start("archive", *where, *both, *archive)[0] == 0
    world.process().append(key(f"{name}-b"), b"fivesix")
    plot = tmp_path / "plot.png"
    code, said, err = start(
        "stats", *where, *both, "--consumer", f"archive={tmp_path / 'c'}", "--plot", str(plot)
    )
    assert code == 0, err
    lines = [line.split() for line in said.splitlines()]
    assert lines[0][-1] == "lag_archive"
    assert [(line[0], line[1], line[2], line[-1]) for line in lines[1:3]] == [
        (f"{name}-a", "3", "6", "0"),
        (f"{name}-b", "2", "11", "7"),
    ]
    assert plot.read_bytes().startswith(b"\x89PNG")
    # Counted in the archive there are those alone that it has; how far it is behind stays as it is.
    out = tmp_path / "table"
    code, said, err = start(
        "stats",
        *where,
        *both,
        "--consumer",
        f"archive={tmp_path / 'c'}",
        "--archive",
        str(tmp_path / "a"),
        "--out",
        str(out),
    )
    assert code == 0, err
    (written,) = out.glob("part-*.json")
    table = [orjson.loads(line) for line in written.read_text().splitlines()]
    assert [(row["stream"], row["messages"], row["bytes"], row["lag_archive"]) for row in table] == [
        (f"{name}-a", 3, 6, 0),
        (f"{name}-b", 1, 4, 7),
    ]


def test_stats_count_what_is_new_in_the_archive_alone(
    start: Callable[..., tuple[int, str, str]],
    spark: Any,
    world: World,
    name: str,
    where: list[str],
    tmp_path: Path,
) -> None:
    """In a directory and in a table, which is compacted and forgets snapshots between two runs."""
    filled(world, f"{name}-a", b"one", b"four")
    lake = Lake(tmp_path / "lake")
    places = {"--out": ["--archive", str(tmp_path / "a")], "--iceberg": lake.given}
    every = [*where, "--pattern", f"{name}-.*"]

    def archive(body: bytes = b"") -> None:
        if body:
            world.process().append(key(f"{name}-a"), body)
        for number, out in enumerate((["--out", str(tmp_path / "a")], lake.given)):
            assert start("archive", *every, *out, "--checkpoint", str(tmp_path / f"c{number}"))[0] == 0

    def counted(kind: str, *more: str) -> tuple[int, int]:
        state = str(tmp_path / f"state{kind}")
        code, said, err = start("stats", *every, *places[kind], "--state", state, *more)
        assert code == 0, err
        line = next(line.split() for line in said.splitlines() if f"{name}-a" in line)
        return int(line[1]), int(line[2])

    def new_files(kind: str) -> int:
        return len(list((tmp_path / f"state{kind}").glob("part-*.parquet")))

    archive()
    assert [counted(kind) for kind in places] == [(2, 7)] * 2
    archive(b"three")
    for kind in places:
        assert counted(kind) == (3, 12)
        assert new_files(kind) == 2
    assert counted("--out") == (3, 12)
    assert new_files("--out") == 2, "nothing new, and nothing is written"
    assert start("compact", *lake.given, "--keep-days", "0")[0] == 0
    archive(b"more")
    assert start("compact", *lake.given, "--keep-days", "0")[0] == 0
    assert [counted(kind) for kind in places] == [(4, 16)] * 2
    assert new_files("--iceberg") == 1, "a snapshot has expired that was never counted: all is counted once"


def test_stats_read_no_values_of_an_archive_that_has_sizes(spark: Any, tmp_path: Path) -> None:
    """Of files that an earlier version wrote they do."""
    stats, rows = load_job("stats"), spark.range(3).selectExpr("'v1' bucket", "'s' stream", "now() timestamp")
    for place, columns in (
        ("new", ("3L bytes", "CAST('lie' AS BINARY) value")),
        ("old", ("CAST('four' AS BINARY) value",)),
    ):
        rows.selectExpr("*", *columns).write.parquet(str(tmp_path / place))
    files = [str(tmp_path / "new"), str(tmp_path / "old")]
    found = stats.archived_rows(spark, SimpleNamespace(archive=None), files)
    assert {row.bytes for row in found.collect()} == {3, 4}
    assert "value" not in found.columns


def test_snapshots_are_published_for_what_the_archive_has_taken(
    start: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Against a stand-in for the server: what is sent, and that retention does not run ahead."""
    with OpaqueServer(is_json=True) as foreign:
        for body in (b'{"id":1,"n":1}', b'{"id":2,"n":1}', b'{"id":1,"n":2}'):
            foreign.append(body)
        whole = ["--url", foreign.url, "--bucket", "some-bucket", "--subscribe", "s"]
        archive = ["--out", str(tmp_path / "a"), "--checkpoint", str(tmp_path / "c")]
        assert start("archive", *whole, *archive)[0] == 0
        foreign.append(b'{"id":3,"n":1}')
        fold = ["--fold", "last-by-key", "--key", "id"]
        consumer = ["--consumer", f"archive={tmp_path / 'c'}"]
        code, said, err = start("snapshot", *whole, *fold, *consumer)
        assert (code, "published=1" in said) == (0, True), err
        path = f"/some-bucket/s/snapshot/{token(3)}"
        assert foreign.snapshots == [(path, b'[{"id":1,"n":2},{"id":2,"n":1}]', "application/json")]
        # The next one begins from it, and is refused: somebody else was first.
        assert start("archive", *whole, *archive)[0] == 0
        foreign.snapshot_status = 409
        code, said, err = start("snapshot", *whole, *fold, *consumer)
        assert (code, "conflict=1" in said) == (0, True), err
        assert foreign.snapshots[1][:2] == (
            f"/some-bucket/s/snapshot/{token(4)}",
            b'[{"id":1,"n":2},{"id":2,"n":1},{"id":3,"n":1}]',
        )


def test_a_message_that_does_not_fold_is_named_or_skipped(
    start: Callable[..., tuple[int, str, str]],
    spark: Any,
    world: World,
    name: str,
    where: list[str],
    tmp_path: Path,
) -> None:
    filled(world, name, b'[{"a":1}]', b"[7]", content_type=JSON)
    filled(world, f"{name}-t", b"{}", b"not json")
    dry = ["--no-consumer", "--dry-run", str(tmp_path / "folds")]
    by_key = ["--fold", "last-by-key", "--key", "a"]
    code, _, err = start("snapshot", *where, "--subscribe", name, *by_key, *dry)
    assert (code, f"stream {name}, message at 0000000000000008: it is no JSON object" in err) == (1, True)
    patch = ["--fold", "merge-patch", "--on-error", "skip"]
    code, said, err = start("snapshot", *where, "--subscribe", f"{name}-t", *patch, *dry)
    assert (code, "skipped_messages=1" in said) == (0, True)
    assert f"{name}-t: 1 skipped, the first of them: message at 0000000000000002: it is not JSON" in err
    assert spark.read.json(str(tmp_path / "folds")).first().detail == "{}"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["archive", "--subscribe", "a", "--out", "x"], "--checkpoint is missing"),
        (["archive", "--subscribe", "a", "--out", "x", "--checkpoint", "y", "--option", "b"], "NAME=VALUE"),
        (
            ["snapshot", "--subscribe", "a", "--fold", "sum", "--no-consumer", "--dry-run", "x"],
            "fold must be",
        ),
        (
            ["snapshot", "--subscribe", "a", "--fold", "json:nope", "--no-consumer", "--dry-run", "x"],
            "cannot be loaded",
        ),
        (
            ["snapshot", "--subscribe", "a", "--fold", "merge-patch", "--no-consumer"],
            "--bucket is missing",
        ),
        (["stats", "--subscribe", "nowhere"], "no such stream in v1: nowhere"),
        (["stats", "--subscribe", "a", "--option", "tabel=x"], "did you mean table?"),
        (
            ["replay", "--archive", "nothing", "--stream", "a", "--to", "b", "--staging", "s", "--id", "i"],
            "PATH_NOT_FOUND",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    start: Callable[..., tuple[int, str, str]], where: list[str], arguments: list[str], what: str
) -> None:
    code, said, err = start(arguments[0], *where, *arguments[1:])
    assert code in (1, 2)
    assert said == ""
    assert what in err
    assert len(err.splitlines()) == 1


def test_an_argument_that_is_none_is_refused_unless_glue_put_it_there(
    start: Callable[..., tuple[int, str, str]],
) -> None:
    """Glue hands its own arguments to a job, among the job's own."""
    with pytest.raises(SystemExit) as refused:
        start("stats", "--subscribe", "a", "--subscribed", "b")
    assert refused.value.code == 2
    glues = ["--JOB_ID", "j_1", "true", "--TempDir", "s3://t", "--JOB_NAME", "stats"]
    assert parse_arguments(load_job("stats").parser(), ["--subscribe", "a", *glues]).subscribe == "a"


def test_how_far_spark_is_is_told_while_it_works(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By Spark's own account of it: one of three tasks is done, and two wait for us."""
    may_end = tmp_path / "may-end"

    def waits(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        while TaskContext.get().partitionId() and not may_end.exists():
            time.sleep(0.05)
        yield from batches

    frame = spark.range(0, 3, 1, 3).mapInArrow(waits, "id BIGINT")
    working = threading.Thread(target=frame.collect)
    with watched(spark, Job("a-job"), seconds=0.05):
        working.start()
        said, until = "", time.monotonic() + 60
        while "a-job: 1 of 3 tasks of stage" not in said and time.monotonic() < until:
            time.sleep(0.05)
            said += capsys.readouterr().err
        may_end.touch()
        working.join(60)
    assert "a-job: 1 of 3 tasks of stage" in said


def test_what_a_worker_raised_is_told_and_not_that_it_did(spark: Any) -> None:
    """Spark's own first line sends its reader to a stack trace."""

    def fails(batches: Iterator[Any]) -> Iterator[Any]:
        yield from ()
        raise KeyError("stream-next-offset")

    with pytest.raises(Exception, match="Traceback") as failed:
        spark.range(1).mapInArrow(fails, "id BIGINT").collect()
    assert explain_failure(failed.value) == ("KeyError: 'stream-next-offset'", Exit.FAILED)


def test_the_archive_starts_its_query_again_where_python_is_slow_to_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was read then. Any other failure, or one of this kind after five minutes, ends the job."""
    from pyspark.errors import StreamingQueryException

    archive = load_job("archive")
    slow = StreamingQueryException(message="[STREAM_FAILED] … Python worker failed to connect back. SQLSTATE")

    def query(fault: Exception | None) -> SimpleNamespace:
        def end(_seconds: int) -> bool:
            if fault is not None:
                raise fault
            return True

        return SimpleNamespace(awaitTermination=end, recentProgress=[{"batchId": 0, "numInputRows": 3}])

    def take(*faults: Exception | None) -> Any:
        queries = map(query, faults)
        return archive.take_batches(lambda: next(queries), Job("archive"))

    assert take(slow, slow, None) == {0: 3}
    assert capsys.readouterr().err.count("the query starts again") == 2
    with pytest.raises(StreamingQueryException, match="other"):
        take(StreamingQueryException(message="other"), None)
    monkeypatch.setattr(archive, "START_SECONDS", -1)
    with pytest.raises(StreamingQueryException, match="failed to connect back"):
        take(slow, None)
    assert explain_failure(slow)[1] == Exit.TRY_AGAIN


@pytest.mark.parametrize("name", JOBS)
def test_every_job_has_help(name: str) -> None:
    """As a script of its own, the way spark-submit starts it, and without starting Spark."""
    command = [sys.executable, str(ROOT / "pipeline" / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert "spark-submit" in done.stdout


def test_missing_java_is_told_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "pipeline" / "stats.py"), "--subscribe", "a"]
    import os

    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=environment | {"PATH": str(tmp_path)},
    )
    assert done.returncode == 2
    assert (
        done.stderr == "stats: Java is missing: Spark needs Java 17 or newer, on the PATH or at JAVA_HOME\n"
    )
