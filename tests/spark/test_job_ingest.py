"""The ingest job: once under its id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from tests.spark.serving import ThreadedServer
from tests.spark.streams import Start, key
from tests.support import World
from tidemark.spark.failures import Exit


def test_ingest(
    start: Start, spark: Any, server: ThreadedServer, world: World, name: str, tmp_path: Path
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


def test_a_used_id_does_not_stand_for_another_write(
    start: Start, spark: Any, server: ThreadedServer, world: World, name: str, tmp_path: Path
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
