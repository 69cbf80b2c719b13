"""The code of the guide, as it is printed."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemark import Stream

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
WRITE, READ, STOP, WITH_ASYNCIO, _ = BLOCKS


def test_what_is_written_is_read(tidemark_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        exec((WRITE + READ).replace("http://127.0.0.1:4437", tidemark_url), {})
        assert capsys.readouterr().out == "Why are there two tides a day? Because the earth turns. "
    assert Stream(f"{tidemark_url}/v1/stream/answers/tides").head().ttl_seconds == 86_400


def test_a_reader_stops_the_writer_in_its_loop(tidemark_url: str) -> None:
    """The model goes on for ever, were it not stopped."""
    printed: dict[str, Any] = {}
    exec(WRITE.replace("http://127.0.0.1:4437", tidemark_url), printed)
    reader = Stream(f"{printed['url']}/again")

    def llm(_question: str) -> Iterator[str]:
        yield "Because "
        reader.request_stop()
        while True:
            yield "... "

    exec(STOP, printed | {"llm": llm})
    shown = reader.read()
    assert shown.text.startswith("Because ")
    assert shown.text.endswith("(stopped)")
    assert shown.closed


def test_the_same_with_asyncio(tidemark_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(WITH_ASYNCIO.replace("http://127.0.0.1:4437", tidemark_url), {"__name__": "printed"})
    assert capsys.readouterr().out == "{'step': 1, 'tool': 'search'}\n"
