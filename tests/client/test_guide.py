"""The code of the guide, as it is printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemark import Stream

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "python.md"
WRITE, READ, BEGIN_AGAIN, WITH_ASYNCIO = re.findall(
    r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL
)


def llm(question: str) -> Iterator[str]:
    yield from (f"{word} " for word in f"{question} Because the earth turns.".split())


def test_what_is_written_is_read(tidemark_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"llm": llm}
    exec((WRITE + READ).replace("http://127.0.0.1:4437", tidemark_url), names)
    assert capsys.readouterr().out == "Why are there two tides a day? Because the earth turns. "
    assert Stream(f"{tidemark_url}/v1/stream/answer-42").head().ttl_seconds == 86_400


def test_a_reader_whose_stream_was_replaced_begins_again(tidemark_url: str) -> None:
    url = f"{tidemark_url}/v1/stream/again"
    names: dict[str, Any] = {"Stream": Stream, "url": url}
    for text in ("the first answer", "another one, and longer", "short"):
        Stream(url).delete(missing_ok=True)
        Stream.create(url, content_type="text/plain", data=text, closed=True)
        names["saved"] = names.get("saved") or {"text": "", "offset": "-1", "incarnation": None}
        exec(BEGIN_AGAIN, names)
        assert names["saved"]["text"] == text


def test_the_same_with_asyncio(tidemark_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(WITH_ASYNCIO.replace("http://127.0.0.1:4437", tidemark_url), {"__name__": "printed"})
    assert capsys.readouterr().out == "{'step': 1, 'tool': 'search'}\n"
