"""The ingest job, once under its id; and the snapshot job: folds, and what of them is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.spark.jobs import Jobs
from tests.spark.opaque import OpaqueServer, token
from tests.spark.streams import Streams
from tests.support import JSON


def test_ingest_writes_once_under_its_id(jobs: Jobs, spark: Any, streams: Streams, tmp_path: Path) -> None:
    """And a used id stands neither for other rows nor for another stream. Names of columns may have dots."""
    users = f"concat('{streams.name}-', id % 3) as `user.name`"
    for file, count in (("one", 300), ("two", 400)):
        spark.range(0, count, 1, 1).selectExpr("id as `row.id`", users).write.parquet(str(tmp_path / file))
    ingest = ["ingest", "--url", streams.server.url, "--create", "--staging", str(tmp_path / "staging")]
    by_user = ["--id", streams.name, "--stream-column", "user.name", "--input"]
    said = jobs.run(*ingest, *by_user, str(tmp_path / "one"))
    assert said.startswith("ingest: messages=300 streams=3")
    assert "already" not in said
    said = jobs.run(*ingest, *by_user, str(tmp_path / "one"))
    assert "messages=300 streams=3" in said
    assert "already_complete=true" in said
    told = f"producer id {streams.name} was used for 300 rows to {streams.name}-0 and 2 more streams"
    to_one = ["--id", streams.name, "--stream", streams.name, "--input"]
    for other in ([*by_user, str(tmp_path / "two")], [*to_one, str(tmp_path / "one")]):
        said = jobs.refuse(*ingest, *other)
        assert told in said
        assert "give it an id of its own" in said
    for user in range(3):
        assert streams.values(f"-{user}") == [{"row.id": index} for index in range(user, 300, 3)]


def test_snapshots_are_published_for_what_the_archive_has_taken(jobs: Jobs, tmp_path: Path) -> None:
    """Against a stand-in for the server: what is sent, and that retention does not run ahead."""
    with OpaqueServer(is_json=True) as foreign:
        for body in (b'{"id":1,"n":1}', b'{"id":2,"n":1}', b'{"id":1,"n":2}'):
            foreign.append(body)
        whole = ["--url", foreign.url, "--bucket", "some-bucket", "--subscribe", "s"]
        archive = ["archive", *whole, "--out", str(tmp_path / "a"), "--checkpoint", str(tmp_path / "c")]
        jobs.run(*archive)
        foreign.append(b'{"id":3,"n":1}')
        fold = ["--fold", "last-by-key", "--key", "id", "--consumer", f"archive={tmp_path / 'c'}"]
        assert "published=1" in jobs.run("snapshot", *whole, *fold)
        path = f"/some-bucket/s/snapshot/{token(3)}"
        assert foreign.snapshots == [(path, b'[{"id":1,"n":2},{"id":2,"n":1}]', "application/json")]
        # The next one begins from it, and is refused: somebody else was first.
        jobs.run(*archive)
        foreign.snapshot_status = 409
        assert "conflict=1" in jobs.run("snapshot", *whole, *fold)
        body = b'[{"id":1,"n":2},{"id":2,"n":1},{"id":3,"n":1}]'
        assert foreign.snapshots[1][:2] == (f"/some-bucket/s/snapshot/{token(4)}", body)


def test_a_message_that_does_not_fold_is_named_or_skipped(
    jobs: Jobs, spark: Any, streams: Streams, tmp_path: Path
) -> None:
    streams.fill(b'[{"a":1}]', b"[7]", content_type=JSON)
    streams.fill(b"{}", b"not json", suffix="-t")
    dry = ["--no-consumer", "--dry-run", str(tmp_path / "folds")]
    by_key = ["--subscribe", streams.name, "--fold", "last-by-key", "--key", "a"]
    code, _, err = jobs.start("snapshot", *jobs.where, *by_key, *dry)
    what = f"stream {streams.name}, message at 0000000000000008: it is no JSON object"
    assert (code, what in err) == (1, True)
    patch = ["--subscribe", f"{streams.name}-t", "--fold", "merge-patch", "--on-error", "skip"]
    code, said, err = jobs.start("snapshot", *jobs.where, *patch, *dry)
    assert (code, "skipped_messages=1" in said) == (0, True)
    assert "-t: 1 skipped, the first of them: message at 0000000000000002: it is not JSON" in err
    assert spark.read.json(str(tmp_path / "folds")).first().detail == "{}"
