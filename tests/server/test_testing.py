"""The fixtures that other projects' tests use, as the guide prints them."""

import asyncio
import inspect
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tidemark.server.ports import listening_socket

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "testing.md"
PRINTED = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_an_empty_server(tidemark_url: str, turn: int) -> None:
    stream = urllib.request.Request(f"{tidemark_url}/v1/stream/tides")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(stream, timeout=60)
    made = urllib.request.Request(stream.full_url, headers={"Content-Type": "text/plain"}, method="PUT")
    with urllib.request.urlopen(made, timeout=60) as response:
        assert response.status == 201


@pytest.mark.parametrize("printed", PRINTED, ids=["a server", "a table"])
def test_what_the_guide_prints_passes(request: pytest.FixtureRequest, printed: str) -> None:
    names: dict[str, Any] = {}
    exec(printed, names)
    [test] = [each for name, each in names.items() if name.startswith("test_")]
    test(**{name: request.getfixturevalue(name) for name in inspect.signature(test).parameters})


def test_answers_do_not_wait_for_the_clients_acknowledgement() -> None:
    """Without TCP_NODELAY each answer on a connection that stays open takes 40 ms."""

    def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        writer.write(bytes([connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)]))
        writer.close()

    async def connect() -> bytes:
        with listening_socket("127.0.0.1", 0) as listener:
            async with await asyncio.start_server(accepted, sock=listener):
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                answer = await reader.read()
                writer.close()
                return answer

    assert asyncio.run(connect()) == b"\1"
