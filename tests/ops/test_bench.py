"""`tidemark bench` against a server: what it prints, and that nothing of it is left."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from tests.conformance.servers import running, tidemark_server
from tidemark.ops.cli import main


def test_a_bench_measures_three_things_and_leaves_no_stream(tmp_path: Path) -> None:
    arguments = ["bench", "b", "--writers", "2", "--messages", "3", "--seconds", "0.3", "--wakes", "2"]
    with running(tidemark_server("asgi", tmp_path)) as server:
        CliRunner().invoke(main, ["--url", server.base_url, "create", "b-0"])
        ran = CliRunner().invoke(main, ["--url", server.base_url, "--json", *arguments])
        assert ran.exit_code == 0, ran.output
        found = json.loads(ran.stdout)
        assert list(found) == ["append", "read", "wake"]
        append, read, wake = found.values()
        assert append["bytes"] == append["count"] * (3 * 256 + 4), "three messages in brackets"
        assert read["bytes"] > append["count"] * 3 * 256
        assert wake["count"] == 2
        for each in found.values():
            assert 0 < each["p50_ms"] <= each["p99_ms"] <= each["max_ms"]
        left = CliRunner().invoke(main, ["--url", server.base_url, "ls"]).stdout
    assert [line.split()[0] for line in left.splitlines()] == ["b-0"], "what was there before is untouched"
