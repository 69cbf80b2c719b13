"""The chat of `docs/examples/chat` as people use it: every word of an answer is shown once, and the tool runs
once, whatever is reloaded, killed or offline meanwhile."""

import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

import pytest

from tests.authorization.tokens import token
from tests.browser.chromium import NEEDS_CHROMIUM
from tests.browser.devtools import Browser, Tab, browser
from tests.conformance.servers import ROOT, Server, node, running, tidemark_server
from tests.waiting import until

CHAT: Final = ROOT / "docs" / "examples" / "chat"
MODULES: Final = ROOT / "node_modules"
[SENTENCES] = re.findall(r'const ANSWER = "(.*)"', (CHAT / "model.mjs").read_text())
ANSWER: Final = (SENTENCES * 2).strip()
LOST_MS: Final = 3000

pytestmark = [
    pytest.mark.slow,
    NEEDS_CHROMIUM,
    pytest.mark.skipif(not (MODULES / "react").exists(), reason="needs node_modules (npm ci)"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built as `npm start` does, with the packages of this repository."""
    folder = tmp_path_factory.mktemp("chat") / "chat"
    shutil.copytree(CHAT, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (folder / "node_modules").symlink_to(MODULES)
    build, _, start = json.loads((CHAT / "package.json").read_text())["scripts"]["start"].partition(" && ")
    assert start == "node server.mjs"
    command = [node(), str(MODULES / "vite" / "bin" / "vite.js"), *build.split()[1:]]
    subprocess.run(command, cwd=folder, check=True)
    return folder


@dataclass
class Room:
    """A chat with its two servers and a browser."""

    tidemark: Server
    chat: Server
    browser: Browser
    name: str

    @contextmanager
    def tab(self) -> Iterator[Tab]:
        with self.browser.tab(f"{self.chat.base_url}/#{self.name}") as tab:
            until(lambda: tab.value("document.querySelector('form') !== null"))
            yield tab

    def tool_runs(self) -> int:
        return self.chat.log_path.read_text().count("highTide Bristol")


@contextmanager
def chatting(
    built: Path, directory: Path, via: str = "asgi", word_ms: int = 40, secret: str = ""
) -> Iterator[Room]:
    """Event streams end after two seconds, so that readers connect again in the middle, too."""
    with (
        running(tidemark_server(via, directory, SSE_SECONDS="2", AUTH_SECRET=secret)) as tidemark,
        browser() as opened,
    ):
        environment = {"TIDEMARK_URL": tidemark.base_url, "WORD_MS": str(word_ms), "LOST_MS": str(LOST_MS)}
        if secret:
            scope = " ".join(
                f"{right}:v1/{name}/*" for right in ("read", "write") for name in ("chats", "answers")
            )
            environment["TIDEMARK_TOKEN"] = token(scope, key=secret)
        command = [node(), str(built / "server.mjs")]
        with running(Server("chat", command, environment, directory / "none", "/")) as chat:
            yield Room(tidemark, chat, opened, f"chat-{random.randrange(10**9)}")


def ask(tab: Tab) -> None:
    tab.value(
        "document.querySelector('input').value = 'When is high tide?';"
        "document.querySelector('form').requestSubmit()"
    )


def shown(tab: Tab) -> str:
    """The text of the last answer, which never has a word twice, nor lacks one before another."""
    texts = "[...document.querySelectorAll('article.assistant:last-of-type .text')]"
    text: str = tab.value(f"{texts}.map((each) => each.textContent).join('')") or ""
    assert ANSWER.startswith(text), text
    return text


def click(tab: Tab, label: str) -> None:
    button = f"[...document.querySelectorAll('button')].find((each) => each.textContent === '{label}')"
    until(lambda: tab.value(f"Boolean({button})"))
    tab.value(f"{button}.click()")


def whole(tab: Tab, answers: int = 1) -> None:
    """The answer is there, and stays the same when the page is loaded again."""
    until(lambda: shown(tab) == ANSWER)
    until(lambda: tab.value("document.querySelector('form').innerText.includes('Send')"))
    tab.reload()
    until(lambda: shown(tab) == ANSWER)
    assert tab.value("document.querySelectorAll('article.assistant').length") == answers
    assert tab.value("document.querySelector('[role=alert]')") is None


@pytest.mark.parametrize(("via", "secret"), [("asgi", ""), ("lambda", ""), ("asgi", "s" * 32)])
def test_reloads_a_second_tab_and_a_slow_reader(built: Path, tmp_path: Path, via: str, secret: str) -> None:
    """With a token, pages read through the chat's server."""
    with (
        chatting(built, tmp_path, via, word_ms=100, secret=secret) as room,
        room.tab() as tab,
        room.tab() as second,
    ):
        second.network(bytes_per_second=4_000)
        ask(tab)
        for part in range(1, 6):
            least = len(ANSWER) * part // 7
            until(lambda least=least: len(shown(tab)) > least)
            tab.reload()
        until(lambda: shown(second) == ANSWER)
        second.network()
        with room.tab() as third:
            for each in (third, tab, second):
                whole(each)
        assert room.tool_runs() == 1


def test_the_servers_die_and_the_network_is_lost(built: Path, tmp_path: Path) -> None:
    """Tidemark's server is killed and started again, and the page is offline for ten seconds."""
    with chatting(built, tmp_path, word_ms=300) as room, room.tab() as tab:
        ask(tab)
        until(lambda: len(shown(tab)) > 10)
        room.tidemark.kill_group()
        room.tidemark.start()
        until(lambda: len(shown(tab)) > 60)
        tab.network(offline=True)
        before = len(shown(tab))
        tab.value("window.back = Date.now() + 10_000")
        until(lambda: tab.value("Date.now() > window.back"))
        assert len(shown(tab)) < before + 40
        tab.network()
        whole(tab)
        assert room.tool_runs() == 1


def test_an_answer_of_a_killed_server_is_shown_as_cut_and_asked_again(built: Path, tmp_path: Path) -> None:
    with chatting(built, tmp_path) as room, room.tab() as tab, room.tab() as second:
        ask(tab)
        for each in (tab, second):
            until(lambda each=each: len(shown(each)) > 20)
        room.chat.kill_group()
        room.chat.start()
        for each in (tab, second):
            until(lambda each=each: each.value("document.querySelector('.end')?.textContent"))
            assert "Cut off" in each.value("document.querySelector('.end').textContent")
            assert 20 < len(shown(each)) < len(ANSWER)
        assert room.tool_runs() == 1
        click(tab, "Try again")
        until(lambda: tab.value("document.querySelector('.end')") is None)
        for each in (tab, second):
            whole(each)
        assert room.tool_runs() == 2


def test_a_stop_button_and_older_messages(built: Path, tmp_path: Path) -> None:
    with chatting(built, tmp_path) as room:
        stream = f"{room.tidemark.base_url}/v1/stream/chats/{room.name}"
        entries = [
            {
                "message": {
                    "id": f"{role}-{n}",
                    "role": role,
                    "parts": [{"type": "text", "text": f"{role} {n}"}],
                }
            }
            for n in range(30)
            for role in ("user", "assistant")
        ]
        headers = {"Content-Type": "application/json"}
        urlopen(Request(stream, json.dumps(entries).encode(), headers, method="PUT"), timeout=60).close()
        with room.tab() as tab:
            until(lambda: tab.value("document.querySelectorAll('article').length") == 20)
            for count in (40, 60):
                tab.value("document.querySelector('#messages').scrollTop = 0")
                until(lambda count=count: tab.value("document.querySelectorAll('article').length") == count)
            numbers = tab.value("[...document.querySelectorAll('article')].map((each) => each.textContent)")
            assert numbers == [f"{role} {n}" for n in range(30) for role in ("user", "assistant")]
            ask(tab)
            until(lambda: len(shown(tab)) > 20)
            click(tab, "Stop")
            until(lambda: tab.value("document.querySelector('.end')?.textContent"))
            assert "Stopped" in tab.value("document.querySelector('.end').textContent")
            assert len(shown(tab)) < len(ANSWER)
            tab.reload()
            until(lambda: tab.value("document.querySelector('.end')?.textContent"))
            click(tab, "Send")  # Nothing is typed, so nothing is sent.
            assert room.tool_runs() == 1


RELOADS: Final = int(os.environ.get("RELOADS", "0"))


@pytest.mark.skipif(not RELOADS, reason="takes minutes: RELOADS=200")
@pytest.mark.parametrize("answer", range(max(1, RELOADS // 4)))
def test_reloads_at_random_moments(built: Path, tmp_path: Path, answer: int) -> None:
    with chatting(built, tmp_path) as room, room.tab() as tab:
        ask(tab)
        for _ in range(4):
            least = min(len(shown(tab)) + random.randrange(120), len(ANSWER) - 1)
            until(lambda least=least: len(shown(tab)) > least)
            tab.reload()
        whole(tab)
        assert room.tool_runs() == 1
