"""The tour of docs/spark/index.md, as it is printed: every block runs, and does what is said above it."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from tests.spark.serving import ThreadedServer
from tests.spark.streams import filled, key, started
from tests.support import JSON, World

PAGE = Path(__file__).parents[2] / "docs" / "spark" / "index.md"
TOUR = PAGE.read_text().partition("## A tour")[2].partition("\n## ")[0]


def run_block(text: str, names: dict[str, Any], spark: Any) -> None:
    """Raises what one of its queries has failed with."""
    spark.streams.resetTerminated()
    exec(compile(text, str(PAGE), "exec"), names)
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()
    if "writeStream" in text:
        spark.streams.awaitAnyTermination(1)


def test_the_tour_runs_as_printed(spark: Any, server: ThreadedServer, world: World, tmp_path: Path) -> None:
    """On the tests' own server and directories, in their session; and what goes to the console goes
    where it can be read."""
    messages = re.search(r"-d '(\[.*?\])'", TOUR)
    assert messages is not None
    filled(world, "events", messages[1].encode(), content_type=JSON)
    blocks = re.findall(r"```python\n(.*?)```", TOUR, re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, Any] = {}
    for block in blocks:
        text = block.replace("http://127.0.0.1:4437", server.url).replace(
            "Path.home()", f'Path("{tmp_path}")'
        )
        text = text.replace('.format("console")', '.format("memory").queryName("words")')
        started(partial(run_block, text, names, spark))
    counted = {
        row["user"]: row[1] for row in spark.sql(re.findall(r'spark\.sql\("(.*?)"\)', TOUR)[0]).collect()
    }
    assert counted == {"ada": 1, "bob": 1}
    words = {row["word"]: row["count"] for row in spark.table("words").collect()}
    assert words == {"to": 2, "be": 2, "or": 1, "not": 1}
    shouted = orjson.loads(b"[" + world.process().read_all(key("shouted"))[:-1] + b"]")
    assert shouted == [{"USER": "ADA", "TEXT": "TO BE"}, {"USER": "BOB", "TEXT": "OR NOT TO BE"}]
