"""The snapshot job: folds, and what of them is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.spark.opaque import OpaqueServer, token
from tests.spark.streams import Start, filled
from tests.support import JSON, World


def test_snapshots_are_published_for_what_the_archive_has_taken(start: Start, tmp_path: Path) -> None:
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
    start: Start, spark: Any, world: World, name: str, where: list[str], tmp_path: Path
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
