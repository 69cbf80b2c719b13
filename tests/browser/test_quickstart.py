"""The README's quickstart runs as it is printed: an LLM's tokens, a reader, and a reload in the middle."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import CLIENT, NEEDS_CHROMIUM, opened
from tests.conformance.servers import ROOT, Server, node, running, tidemark_server
from tidemark import Stream

README = (ROOT / "README.md").read_text().partition("## Quickstart")[2].partition("\n## ")[0]
TS_WRITER, TS_READER = re.findall(r"```ts\n(.*?)```", README, re.DOTALL)
GUIDE = (ROOT / "docs" / "guides" / "llm-tokens.md").read_text()
TS_SAVING = (ROOT / "docs" / "examples" / "follow-answer.ts").read_text()
PY_WRITER, PY_READER = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

ANSWER = "There are two tides a day because the earth turns under two bulges of water 🌊. "
#: A model's first piece is often empty.
EMPTY_FIRST = ("async function* llm() {", 'async function* llm() {\n  yield ""')
NEEDS_CLIENT = pytest.mark.skipif(not CLIENT.exists(), reason="needs node_modules (npm ci)")


@pytest.fixture(params=["asgi", "lambda"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    # Event streams end after two seconds, so that readers reconnect in the middle, too.
    with running(tidemark_server(request.param, tmp_path, SSE_SECONDS="2")) as made:
        yield made


def at(server: Server, block: str) -> str:
    assert "http://127.0.0.1:4437" in block
    return block.replace("http://127.0.0.1:4437", server.base_url)


def start(command: list[str], directory: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=directory, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    return out


def start_typescript(code: str, directory: Path) -> subprocess.Popen[str]:
    """The blocks have no annotations, so they are JavaScript too."""
    (directory / "block.mjs").write_text(code)
    modules = directory / "node_modules"
    if not modules.exists():
        modules.symlink_to(ROOT / "node_modules")
    return start([node(), str(directory / "block.mjs")], directory)


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    """Until the reader has saved a token."""
    deadline = time.monotonic() + 60
    while not (file.exists() and json.loads(file.read_text())["text"]):
        assert time.monotonic() < deadline, "the reader saved nothing"
        assert process.poll() is None, finish(process)
        time.sleep(0.02)


@NEEDS_CLIENT
def test_the_typescript_blocks_pass_a_strict_compiler(tmp_path: Path) -> None:
    """The page's without `await` at its top level, which a bundler's default format does not have."""
    (tmp_path / "node_modules").symlink_to(ROOT / "node_modules")
    options = "--noEmit --strict --target es2018 --lib es2022,dom --moduleResolution bundler --types ''"
    readers = ((TS_READER, "es2015"), (TS_SAVING, "es2015"))
    for block, module in ((TS_WRITER, "esnext --target es2022"), *readers):
        (tmp_path / "block.mts").write_text(block)
        command = f"{node()} node_modules/typescript/bin/tsc block.mts {options} --module {module}"
        finish(start(shlex.split(command), tmp_path))


@NEEDS_CHROMIUM
@NEEDS_CLIENT
@pytest.mark.parametrize("reader", [TS_READER, TS_SAVING], ids=["short", "saving"])
def test_a_reloaded_browser_shows_the_whole_answer_once(server: Server, tmp_path: Path, reader: str) -> None:
    """Opened before there is a stream, and reloaded half-way; the one that saves goes on from its offset."""
    task = {"code": at(server, reader), "whole": ANSWER, "reload": True}
    half = TS_WRITER.replace(
        "setTimeout(next, 250)",
        'word === "turns " ? process.stdin.on("end", next).resume() : setTimeout(next, 50)',
    ).replace(*EMPTY_FIRST)
    assert half.count("process.stdin") == half.count('yield ""') == 1
    with opened("quickstart.html", task) as page:
        writer = start_typescript(at(server, half), tmp_path)
        resumed_from = int(page.report()["resumedFrom"])
        finish(writer)  # which ends its input: the rest of the answer is written after the reload
        shown = page.report()["shown"]
    assert shown == ANSWER
    assert resumed_from == 0 if reader is TS_READER else 0 < resumed_from <= ANSWER.index("turns")


@NEEDS_CHROMIUM
@NEEDS_CLIENT
@pytest.mark.parametrize("before", ["It is shorter.", ANSWER.upper() * 3])
def test_a_page_shows_an_answer_that_is_written_anew(server: Server, tmp_path: Path, before: str) -> None:
    """Where the saved offset lies behind the new end, and where it lies inside the new answer."""
    for _ in range(2):
        finish(start_typescript(at(server, TS_WRITER), tmp_path))
    saved = {"written": '"earlier', "text": before, "offset": f"{len(before.encode()):016}"}
    task = {"code": at(server, TS_SAVING), "whole": ANSWER, "saved": saved}
    with opened("quickstart.html", task) as page:
        report = page.report()
    assert report["first"] == before, "what is saved is shown at once"
    assert report["shown"] == ANSWER


@NEEDS_CHROMIUM
@NEEDS_CLIENT
def test_a_stop_button_ends_an_answer(tmp_path: Path) -> None:
    """Of a writer in JavaScript, also the second answer under its name; and of a writer in Python."""
    _, block = re.findall(r"```js\n(.*?)```", GUIDE, re.DOTALL)
    with running(tidemark_server("asgi", tmp_path, ALLOW_ANONYMOUS="true")) as server:
        answer, other = (Stream(f"{server.base_url}/v1/stream/{name}") for name in ("answer", "other"))
        task = {"code": block, "url": answer.url, "other": other.url}
        with other.stop_requests() as stop, opened("stop.html", task) as page:
            assert page.report()
            assert stop.wait(60)
        assert re.fullmatch(r"(tide ){5,}\(stopped\)", answer.read().text)


def test_a_python_reader_that_is_killed_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    """Started before there is a stream; a later start shows what was saved, and goes on: every token is there
    once and in order. One more shows the whole answer."""
    reader = start([sys.executable, "-c", at(server, PY_READER)], tmp_path)
    writer = start([sys.executable, "-c", at(server, PY_WRITER)], tmp_path)
    file = tmp_path / "answer-42.json"
    wait_for(file, reader)
    reader.kill()
    reader.communicate(timeout=60)
    before = json.loads(file.read_text())
    out = finish(start([sys.executable, "-c", at(server, PY_READER)], tmp_path))
    finish(writer)
    assert before["text"]
    assert out == ANSWER == json.loads(file.read_text())["text"]
    assert finish(start([sys.executable, "-c", at(server, PY_READER)], tmp_path)) == ANSWER


def test_a_python_reader_begins_again_if_the_answer_is_written_anew(server: Server, tmp_path: Path) -> None:
    """The writer runs again and the reader with it: the new answer is longer, and shorter."""
    writer = at(server, PY_WRITER).replace("0.25", "0")
    for answer in (ANSWER, "It is longer now. " + ANSWER, "Short. "):
        finish(start([sys.executable, "-c", writer.replace(ANSWER.strip(), answer.strip())], tmp_path))
        out = finish(start([sys.executable, "-c", at(server, PY_READER)], tmp_path))
        saved = json.loads((tmp_path / "answer-42.json").read_text())
        assert out.rpartition("\n")[2] == saved["text"] == answer
