"""The commands of the guides run as they are printed, and every other one says that it is not run."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.servers import ROOT, Server, node, reference_server, running, tidemark_server
from tidemark.client import ProducerFenced, Stream

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs"
NODE_SERVER = ROOT / "node_modules" / "@durable-streams" / "server"
#: A fenced block that could be run, and the line before it.
BLOCK = re.compile(r"^([^\n]*)\n```(sh|bash|python|js|ts)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- (?:run by (tests/[\w/]+\.py)|not run.*\S.*) -->")


def blocks(page: str) -> list[tuple[str, str]]:
    """Those that this file runs: language and text."""
    found = BLOCK.findall((DOCS / page).read_text())
    return [(language, text) for mark, language, text in found if Path(__file__).name in mark]


def test_every_command_is_run_by_a_test_or_says_that_it_is_not() -> None:
    """A page that nobody runs goes wrong in silence."""
    for page in sorted(DOCS.rglob("*.md")):
        for mark, _, text in BLOCK.findall(page.read_text()):
            match = MARK.fullmatch(mark.strip())
            assert match, f"{page}: no mark before:\n{text}"
            assert match[1] is None or (ROOT / match[1]).is_file(), f"{page}: {mark}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tidemark_server("asgi", tmp_path_factory.mktemp("server"))) as made:
        yield made


def run(text: str, server: Server) -> str:
    script = text.replace("http://127.0.0.1:4437", server.base_url).replace("curl ", "curl --fail-with-body ")
    environment = os.environ | {"PATH": f"{Path(node()).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as response:
        return json.loads(response.read())


@pytest.mark.parametrize(
    "page",
    ["guides/llm-tokens.md", "guides/collaborative-document.md", "guides/synced-table.md"],
    ids=lambda page: Path(page).stem,
)
def test_the_curl_lines_of_a_guide_succeed(server: Server, page: str) -> None:
    assert all("201" in run(text, server) for language, text in blocks(page) if language == "sh")


def test_a_chat_shows_its_last_messages_and_older_ones_on_scrolling(server: Server, tmp_path: Path) -> None:
    """Also where one scroll is two events."""
    url = f"{server.base_url}/v1/stream/long-chat"
    Stream.create(url, content_type="application/json")
    send("POST", url, json.dumps([*range(120)]).encode(), {"Content-Type": "application/json"})
    [code] = [text for language, text in blocks("guides/llm-tokens.md") if language == "js"]
    script = f"""{code}
    const box = {{ scrollTop: 0, rows: [], prepend(...rows) {{ this.rows.unshift(...rows) }} }}
    const seen = [await showHistory("{url}", box, (each) => each)]
    for (let page = 0; page < 3; page++) {{
      seen.push(box.rows.length)
      await Promise.all([box.onscroll(), box.onscroll()])
    }}
    console.log(JSON.stringify([seen, box.rows]))"""
    (tmp_path / "chat.mjs").write_text(script)
    seen, rows = json.loads(run(f"node {tmp_path}/chat.mjs", server))
    assert seen == [Stream(url).head().offset, 50, 100, 120]
    assert rows == [*range(120)]


def test_times_and_bulk_reads_are_as_the_reference_says(server: Server) -> None:
    (_, text), (_, many), (_, filtered) = blocks("reference/http.md")
    page, told = run(text, server).strip().rpartition("]{")[::2]
    assert page.endswith('[{"n":1},{"n":2},{"n":3}')
    found = json.loads("{" + told)
    times_ms = found.pop("times_ms")
    shown = (DOCS / "reference/http.md").read_text().partition('    {"offset"')[2].partition("\n\n")[0]
    example = json.loads('{"offset"' + shown)
    assert len(times_ms) == len(example.pop("times_ms"))
    assert times_ms == sorted(times_ms)
    assert found == example
    pages = json.loads(run(f"S={server.base_url}\n{many}", server))["pages"]
    pages[0]["etag"] = "…"
    shown = (DOCS / "reference/http.md").read_text().partition('    {"pages"')[2].partition("\n\n")[0]
    assert pages == json.loads('{"pages"' + shown)["pages"]
    assert json.loads(run(f"S={server.base_url}\n{filtered}", server)) == [{"n": 2}, {"n": 3}]


def test_streams_with_limits_of_their_own_or_of_their_bucket_are_created(server: Server) -> None:
    (_, of_a_stream), (_, of_a_bucket) = blocks("retention.md")
    run(f"B={server.base_url}\n{of_a_stream}{of_a_bucket}", server)
    for path, limits in (("/v1/stream/metrics", ("86400", "1000000")), ("/sessions/42", ("604800", None))):
        asked = urllib.request.Request(f"{server.base_url}{path}", method="HEAD")
        with urllib.request.urlopen(asked, timeout=60) as response:
            told = response.headers["Stream-Retain-Seconds"], response.headers["Stream-Retain-Bytes"]
        assert told == limits


def test_streams_that_are_compacted_are_created_as_the_page_says(server: Server) -> None:
    [(_, commands)] = blocks("compaction.md")
    run(f"B={server.base_url}\n{commands}", server)
    send("PUT", f"{server.base_url}/orders/42", b"", {"Content-Type": "application/json"})
    for path, key in (("/v1/stream/stock", None), ("/orders/42", "/id")):
        asked = urllib.request.Request(f"{server.base_url}{path}", method="HEAD")
        with urllib.request.urlopen(asked, timeout=60) as response:
            told = [response.headers[f"Stream-Compact{of}"] for of in ("", "-After", "-Tombstones", "-Key")]
        assert told == ["last-by-key", "3600", "86400", key]


def test_the_walk_through_of_buckets_and_snapshots(server: Server) -> None:
    (_, begin), (_, publish) = blocks("buckets-and-snapshots.md")
    assert "0000000000000063" in run(f"B={server.base_url}\n{begin}", server)
    run(f"B={server.base_url}\n{publish}", server)
    with pytest.raises(urllib.error.HTTPError, match="410"):
        get(f"{server.base_url}/notes/report?offset=-1")


def test_an_agent_that_is_started_again_goes_on_and_fences_off_the_first(server: Server) -> None:
    (_, code), (_, fork) = blocks("guides/agent-log.md")
    code = code.replace("http://127.0.0.1:4437", server.base_url)
    first: dict[str, Any] = {}
    exec(compile(code, "agent-log.md", "exec"), first)
    second: dict[str, Any] = {}
    exec(compile(code, "agent-log.md", "exec"), second)
    kinds = [step["kind"] for step in get(f"{server.base_url}/v1/stream/agents/run-7")]
    assert kinds == ["started", "tool", "answer"] * 2
    assert [step["kind"] for step in second["steps"]] == ["started", "tool", "answer", "started"]
    with pytest.raises(ProducerFenced, match="403"):
        first["write"]({"kind": "too late"})
    run(fork, server)
    assert len(get(f"{server.base_url}/v1/stream/agents/run-7b")) == len(kinds)


@pytest.mark.skipif(not NODE_SERVER.exists(), reason="needs node_modules (npm ci)")
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_a_stream_of_the_reference_server_is_copied(server: Server, tmp_path: Path, kind: str) -> None:
    """Twice, as after an interruption: each message is there once."""
    [(_, command)] = blocks("guides/migrate.md")
    messages = [{"n": number, "text": "ü🌊"} for number in range(300)]
    parts = [json.dumps(each).encode() for each in messages]
    with running(reference_server(tmp_path)) as source:
        name = f"events-{kind.partition('/')[2]}"
        url = f"{source.base_url}/v1/stream/{name}"
        send("PUT", url, b"", {"Content-Type": kind})
        for part in parts:
            send("POST", url, part, {"Content-Type": kind})
        send("POST", url, b"", {"Stream-Closed": "true"})
        command = command.replace("http://127.0.0.1:4438", source.base_url).replace("/events", f"/{name}")
        command = command.replace("tidemark ", f"{sys.executable} -m tidemark.cli ")
        run(command, server)
        run(command, server)
    copy = f"{server.base_url}/v1/stream/{name}"
    with urllib.request.urlopen(copy, timeout=60) as response:
        body = response.read()
        assert response.headers["Stream-Closed"] == "true"
    assert json.loads(body) == messages if kind == "application/json" else body == b"".join(parts)


def send(method: str, url: str, body: bytes, headers: dict[str, str]) -> None:
    request = urllib.request.Request(url, body or None, headers, method=method)
    urllib.request.urlopen(request, timeout=60).close()
