"""The replay job: what was archived comes back byte for byte."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.spark.streams import Start, filled, key
from tests.support import BYTES, JSON, World
from tidemark.spark.failures import Exit
from tidemark.spark.progress import taken_progress


def test_archive_and_replay_give_the_same_bytes(
    start: Start, spark: Any, world: World, name: str, where: list[str], tmp_path: Path
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
    day = datetime.fromtimestamp(world.clock() / 1000, UTC).date()
    assert (tmp_path / "archive" / "bucket=v1" / f"date={day}").is_dir()
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


def test_a_stream_with_a_gap_is_replayed_only_if_that_is_allowed(
    start: Start, spark: Any, world: World, name: str, where: list[str], tmp_path: Path
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
    # What was archived is not put behind messages that are there already, as those of the stream itself.
    replay[replay.index("--id") + 1] = "another"
    code, said, err = start(*replay, "--allow-gaps")
    assert (code, said, f"{name}-again has messages already" in err) == (Exit.YOUR_INPUT, "", True), err
