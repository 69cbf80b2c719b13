"""The root page, for people and monitors."""

import re
from pathlib import Path

import pytest

from tests.http.asgi import Door
from tidemark import __version__
from tidemark.http import pages

DOCS = "https://github.com/durable-streams/durable-streams/blob/main/PROTOCOL.md"


def test_a_browser_gets_a_page_that_introduces_the_server(door: Door) -> None:
    answer = door.get("/", {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert answer.status == 200
    assert answer["Content-Type"] == "text/html; charset=utf-8"
    page = answer.body.decode()
    for told in ("Tidemark", DOCS, "v1/console", "v1/docs", "v1/openapi.json", "v1/health"):
        assert told in page
    assert (answer["Vary"], answer["Cache-Control"]) == ("Accept, Accept-Encoding", "no-store")
    assert "script-src 'self'" in (answer["Content-Security-Policy"] or "")
    files = re.findall(r'"(v1/console/[^"]+)"', page)
    assert files
    for file in files:
        assert door.get(f"/{file}").status == 200, file


@pytest.mark.parametrize("accept", [{}, {"Accept": "*/*"}, {"Accept": "application/json"}])
def test_a_program_gets_the_front_page_as_json(door: Door, accept: dict[str, str]) -> None:
    answer = door.get("/", accept)
    assert (answer.status, answer["Content-Type"]) == (200, "application/json")
    assert (answer.json["service"], answer.json["version"]) == ("Tidemark", __version__)
    for name in ("console", "openapi", "api", "health"):
        assert door.get(answer.json[name]).status == 200, name


@pytest.mark.parametrize(
    ("written", "commit"), [(None, None), ("", None), ("0123456789ab-dirty\n", "0123456789ab-dirty")]
)
def test_health_returns_the_version_and_the_commit_it_was_built_from(
    door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: str | None, commit: str | None
) -> None:
    file = tmp_path / "commit.txt"
    if written is not None:
        file.write_text(written)
    monkeypatch.setattr(pages, "COMMIT_FILE", file)
    pages.built_from.cache_clear()
    try:
        answer = door.get("/v1/health")
    finally:
        pages.built_from.cache_clear()
    told = {"status": "ok", "version": __version__, "commit": commit, "clock_ahead_seconds": 0.0}
    assert (answer.status, answer.json, answer["cache-control"]) == (200, told, "no-store")
