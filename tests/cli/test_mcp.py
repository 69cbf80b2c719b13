"""`tidemark mcp` as its guide configures it, by the client of the MCP package."""

import asyncio
import json
import re
import subprocess
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client

from tests.authorization.tokens import ADMIN, SECRET, bearer, token
from tests.cli.test_cli import written_command
from tests.conformance.servers import ROOT, Server, running, tidemark_server
from tests.ports import free_port
from tests.waiting import on_a_loop
from tidemark.client import Stream

GUIDE = (ROOT / "docs" / "guides" / "command-line.md").read_text()
[BLOCK] = re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)
TEXT = "há tide 🌊 " * 9000
JSON = "application/json"
FAR = f"{99_999:016}"
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("read_stream", {"stream": "none"}, "404: there is no such stream"),
    ("read_stream", {"stream": "http://other/v1/stream/x"}, "Stream name must not have empty"),
    ("read_stream", {"stream": "/v1/subscriptions"}, "Bucket id must be"),
    ("read_stream", {"stream": "/bins/doc/snapshot"}, "Stream id must not contain '/'"),
    ("read_stream", {"stream": "a/../b"}, "'.' or '..' segments"),
    ("read_stream", {"limit": 501}, "less than or equal to 500"),
    ("read_stream", {"last": 5}, "read_stream has no argument 'last'; it has stream, limit, before, after"),
    ("read_stream", {"before": "7"}, "400: offset must be -1, now, or"),
    ("read_stream", {"before": f"{1:016}"}, "is not the end of a message"),
    ("read_stream", {"before": FAR, "after": FAR}, "before and after are both given: give one of them"),
    ("read_stream", {"after": FAR}, "410: "),
    ("read_stream", {"after": "yesterday"}, "400: from must be an RFC 3339 time such as"),
    ("wait_for_news", {"seconds": 51}, "less than or equal to 50"),
    ("wait_for_news", {"after": "soon"}, "400: offset must be"),
    ("append", {"data": "{oops"}, "a message of a JSON stream must be one JSON value"),
    ("append", {"data": ""}, "at least 1 character"),
    ("append", {"data": "1", "create": "text/plain"}, "409: "),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    private = {"AUTH_SECRET": SECRET, "ALLOW_ANONYMOUS": "false"}
    with running(tidemark_server("asgi", tmp_path_factory.mktemp("mcp"), **private)) as made:
        httpx.put(f"{made.base_url}/bins", headers=bearer(ADMIN)).raise_for_status()
        yield made


@pytest.fixture
def home(server: Server, tmp_path: Path) -> Path:
    """The home of a user whose profile `prod` may do everything with the server."""
    (folder := tmp_path / ".config" / "tidemark").mkdir(parents=True)
    profile = f'[profiles.prod]\nurl = "{server.base_url}"\ntoken_file = "prod.token"\n'
    (folder / "config.toml").write_text(profile)
    give_token(tmp_path, ADMIN)
    return tmp_path


def give_token(home: Path, scope: str, **more: Any) -> None:
    file = home / ".config" / "tidemark" / "prod.token"
    file.write_text(token(scope, **more))
    file.chmod(0o600)


@asynccontextmanager
async def tools_of(home: Path, *more: str) -> AsyncIterator[ClientSession]:
    started = json.loads(BLOCK)["mcpServers"]["tidemark"]
    started["args"] += more
    started["env"] = {"HOME": str(home), "PATH": written_command(home), "XDG_CONFIG_HOME": ""}
    async with stdio_client(StdioServerParameters(**started)) as pipes, ClientSession(*pipes) as session:
        await session.initialize()
        yield session


async def text_of(session: ClientSession, tool: str, *, fails: bool = False, **arguments: Any) -> str:
    result = await session.call_tool(tool, arguments)
    [content] = result.content
    assert content.type == "text"
    assert result.is_error == fails, content.text
    assert "Traceback" not in content.text
    assert len(content.text) < 50_000
    return content.text


async def call(session: ClientSession, tool: str, **arguments: Any) -> Any:
    return json.loads(await text_of(session, tool, **arguments))


async def pages_both_ways(session: ClientSession, stream: str, limit: int) -> list[list[Any]]:
    """The answers with messages: read from the beginning, and read from the end. Each begins elsewhere."""
    found = list[list[Any]]()
    asked = {"stream": stream, "limit": limit}
    for way, onward, start in (("after", "end", "-1"), ("before", "start", "")):
        pages, place = list[Any](), start
        while (page := await call(session, "read_stream", **asked, **{way: place}))["messages"]:
            assert page[onward] != place
            pages.append(page)
            place = page[onward]
        found.append(pages if way == "after" else pages[::-1])
    return found


@on_a_loop
async def test_append_is_a_tool_with_write_alone(home: Path) -> None:
    for options, names in (((), []), (("--write",), ["append"])):
        async with tools_of(home, *options) as session:
            found = [(tool.name, tool.annotations) for tool in (await session.list_tools()).tools]
        assert [name for name, _ in found] == ["list_streams", "read_stream", "wait_for_news", *names]
        assert all(hints and hints.read_only_hint == (name != "append") for name, hints in found)


@on_a_loop
async def test_messages_are_read_page_by_page_both_ways_and_streams_are_listed(home: Path) -> None:
    sent = [{"n": number, "text": "ü" * 5000} for number in range(8)]
    async with tools_of(home, "--write") as session:
        for each in (*sent, "x" * 100_000):
            data = json.dumps(each, ensure_ascii=False)
            await call(session, "append", stream="log/1", data=data, create=JSON)
        end = (await call(session, "append", stream="log/2", data="1", create=JSON))["end"]
        ways = await pages_both_ways(session, "log/1", 3)
        found, back = ([each for page in pages for each in page["messages"]] for pages in ways)
        assert found == back
        assert [each["message"] for each in found[:-1]] == sent
        assert (found[-1]["bytes"], found[-1]["beginning"][:3]) == (100_002, '"xx')
        first = await call(session, "list_streams", prefix="log/", limit=1)
        second = await call(session, "list_streams", prefix="log/", after=first["next"])
    assert [each["stream"] for each in (*first["streams"], *second["streams"])] == ["log/1", "log/2"]
    assert (second["next"], second["streams"][0]["end"]) == (None, end)


@on_a_loop
async def test_text_comes_in_whole_characters_and_binary_data_as_base64(server: Server, home: Path) -> None:
    root, headers = server.base_url, bearer(ADMIN)
    text = Stream.create(f"{root}/v1/stream/answer", content_type="text/plain", headers=headers)
    for start in range(0, len(TEXT), 9000):
        text.append(TEXT[start : start + 9000])
    text.close()
    binary = Stream.create(f"{root}/bins/a b", content_type="image/png", headers=headers)
    binary.append(bytes(range(256)) * 100)
    async with tools_of(home) as session:
        for found in await pages_both_ways(session, "answer", 50):
            assert "".join(page["messages"][0]["text"] for page in found) == TEXT
            assert (found[-1]["closed"], [page["newer"] for page in found[-2:]]) == (True, [True, False])
        [listed] = (await call(session, "list_streams", prefix="/bins/"))["streams"]
        [last] = (await call(session, "read_stream", stream=listed["stream"]))["messages"]
    assert b64decode(last["base64"]) == bytes(range(256)) * 16


@on_a_loop
async def test_a_wait_ends_with_news_or_with_nothing(home: Path) -> None:
    async with tools_of(home, "--write") as session:
        end = (await call(session, "append", stream="news", data="1", create=JSON))["end"]
        assert (await call(session, "wait_for_news", stream="news", seconds=0.1))["end"] == end
        waiting = asyncio.create_task(call(session, "wait_for_news", stream="news", after=end, seconds=50))
        await call(session, "append", stream="news", data="[2]")
        assert [each["message"] for each in (await waiting)["messages"]] == [[2]]


@on_a_loop
async def test_a_wrong_argument_is_an_error_with_fact_and_remedy(home: Path) -> None:
    async with tools_of(home, "--write") as session:
        await call(session, "append", stream="wrong", data="[1]", create=JSON)
        for tool, arguments, said in WRONG:
            assert said in await text_of(session, tool, fails=True, **{"stream": "wrong"} | arguments), said


@on_a_loop
async def test_the_tools_have_the_rights_of_the_token_that_the_file_has_now(home: Path) -> None:
    given = {"stream": "rights", "data": "1", "create": JSON}
    give_token(home, "read:v1")
    async with tools_of(home, "--write") as session:
        assert ": 403: " in await text_of(session, "append", fails=True, **given)
        give_token(home, ADMIN)
        await call(session, "append", **given)
        give_token(home, ADMIN, exp=1)
        assert ": 401: " in await text_of(session, "list_streams", fails=True)
        (home / ".config" / "tidemark" / "prod.token").chmod(0o644)
        assert "chmod 600" in await text_of(session, "wait_for_news", stream="rights", fails=True)


@on_a_loop
async def test_a_server_that_is_gone_is_named(home: Path) -> None:
    async with tools_of(home, "--url", f"http://127.0.0.1:{free_port()}") as session:
        for tool, given in (("list_streams", {}), ("wait_for_news", {"stream": "x"})):
            assert "The server does not answer: " in await text_of(session, tool, fails=True, **given)


def test_without_its_package_the_command_names_what_to_install() -> None:
    program = "import sys; sys.modules['mcp'] = None; from tidemark.cli.__main__ import main; main(['mcp'])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    said = "The package mcp is missing, or older than 2: pip install 'tidemark-streams[mcp]'"
    assert (ran.returncode, ran.stderr) == (1, f"Error: {said}\n")
