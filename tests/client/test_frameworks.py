"""The applications of the guide to frameworks, and its hook, as they are printed."""

import asyncio
import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.servers import ROOT, node
from tests.waiting import on_a_loop
from tidemark import AsyncStream, Stream

HERE = Path(__file__).parent
EXAMPLES = ROOT / "docs" / "examples"
CLIENT = ROOT / "node_modules" / "@durable-streams"
QUESTION = "Why are there two tides a day?"


def load(name: str, streams: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("STREAMS", streams)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text_of(stream: str) -> str:
    return "".join(chunk.text for chunk in Stream(stream).follow())


@on_a_loop
async def test_fastapi_writes_behind_its_response(tidemark_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("fastapi_app", f"{tidemark_url}/v1/stream/answers", monkeypatch)
    transport = httpx.ASGITransport(module.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        assert "EventSource" in (await client.get("/")).text
        asked = (await client.post("/answers", params={"question": QUESTION})).json()
    assert text_of(asked["stream"]).startswith(QUESTION + " Because")


@on_a_loop
async def test_fastapi_stops_an_answer_if_asked(tidemark_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("fastapi_app", f"{tidemark_url}/v1/stream/answers", monkeypatch)

    async def llm(_question: str) -> AsyncIterator[str]:
        yield "Because "
        await module.stop_answer("tides")
        while True:
            await asyncio.sleep(0.01)
            yield "... "

    monkeypatch.setattr(module, "llm", llm)
    answer = await AsyncStream.create(f"{module.STREAMS}/tides", content_type="text/plain")
    await module.write(answer, QUESTION)
    assert text_of(f"{module.STREAMS}/tides").startswith("Because ")


def test_flask_writes_an_answer_in_a_thread(tidemark_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flask")
    module = load("flask_app", f"{tidemark_url}/v1/stream/answers", monkeypatch)
    client = module.app.test_client()
    asked = client.post("/answers", query_string={"question": QUESTION}).get_json()
    assert text_of(asked["stream"]).startswith(QUESTION + " Because")


def blocks() -> list[str]:
    return re.findall(r"```js\n(.*?)```", (ROOT / "docs/guides/frameworks.md").read_text(), re.DOTALL)


@pytest.mark.slow
@pytest.mark.skipif(not CLIENT.exists(), reason="needs node_modules (npm ci)")
def test_the_react_hook_shows_an_answer_to_its_end(tidemark_url: str, tmp_path: Path) -> None:
    hook, _ = blocks()
    url = f"{tidemark_url}/v1/stream/answer"
    answer = Stream.create(url, content_type="text/plain")
    with answer.producer("model") as producer:
        producer.append("Because ")
        producer.append("the earth turns.")
    modules = tmp_path / "node_modules"
    (modules / "react").mkdir(parents=True)
    (modules / CLIENT.name).symlink_to(CLIENT)
    (modules / "react" / "package.json").write_text('{"type": "module", "exports": "./react.js"}')
    shutil.copy(HERE / "react.mjs", modules / "react" / "react.js")
    (tmp_path / "page.mjs").write_text(f"{hook}\nuseAnswer({json.dumps(url)})\n")
    done = subprocess.run([node(), "page.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"text": "Because the earth turns.", "done": True}


@pytest.mark.slow
@pytest.mark.skipif(not CLIENT.exists(), reason="needs node_modules (npm ci)")
def test_a_table_and_a_reader_of_a_page_wait_on_one_socket(tidemark_url: str, tmp_path: Path) -> None:
    """Node 20 has WebSocket behind a flag, and imports nothing by HTTP."""
    _, block = blocks()
    module = (ROOT / "shared" / "tidemark" / "console" / "socket.js").as_uri()
    block = block.replace("http://127.0.0.1:4437/v1/socket.js", module)
    (tmp_path / "node_modules").symlink_to(ROOT / "node_modules")
    url, program = json.dumps(f"{tidemark_url}/v1/stream/tasks"), (HERE / "one_socket.mjs").read_text()
    (tmp_path / "page.mjs").write_text(f"{block}\nconst url = {url}\n{program}")
    command = [node(), "--experimental-websocket", "page.mjs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["Tides", 1, 1]
