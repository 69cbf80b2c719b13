"""The tour of docs/spark.md, as it is printed: every block runs, and does what is said above it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.spark.serving import ThreadedServer
from tests.spark.streams import filled, key
from tests.support import JSON, World

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
TOUR = PAGE.read_text().partition("## A tour")[2].partition("\n## ")[0]


def test_the_tour_runs_as_it_is_printed(
    spark: Any, server: ThreadedServer, world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On the tests' own server and directories, and in their session."""
    messages = re.search(r"-d '(\[.*?\])'", TOUR)
    assert messages is not None
    filled(world, "events", messages[1].encode(), content_type=JSON)
    blocks = re.findall(r"```python\n(.*?)```", TOUR, re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, Any] = {}
    for block in blocks:
        text = block.replace("http://127.0.0.1:4437", server.url).replace('"/tmp/', f'"{tmp_path}/')
        exec(compile(text, str(PAGE), "exec"), names)
        for query in spark.streams.active:
            query.processAllAvailable()
            query.stop()
    counted = {
        row["user"]: row[1] for row in spark.sql(re.findall(r'spark\.sql\("(.*?)"\)', TOUR)[0]).collect()
    }
    assert counted == {"ada": 1, "bob": 1}
    assert shows(capfd, r"\|\s*to\|\s*2\|"), "the words are counted on the console"
    shouted = orjson.loads(b"[" + world.process().read_all(key("shouted"))[:-1] + b"]")
    assert shouted == [{"USER": "ADA", "TEXT": "TO BE"}, {"USER": "BOB", "TEXT": "OR NOT TO BE"}]


def shows(capfd: pytest.CaptureFixture[str], pattern: str) -> bool:
    """What the JVM prints comes when it comes."""
    said, until = "", time.monotonic() + 60
    while not re.search(pattern, said) and time.monotonic() < until:
        time.sleep(0.05)
        said += capfd.readouterr().out
    return re.search(pattern, said) is not None
