"""The AG-UI agents of `docs/examples/ag-ui`, read by `@ag-ui/client`, which verifies the order of events."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.authorization.tokens import SECRET, bearer, token
from tests.browser.cutting import cutting
from tests.conformance.servers import ROOT, Server, node, running, tidemark_server
from tests.waiting import PATIENCE_SECONDS, until
from tidemark import Stream

EXAMPLE: Final = ROOT / "docs" / "examples" / "ag-ui"
LANGGRAPH: Final = ROOT / ".langgraph"
PAGE: Final = (ROOT / "docs" / "guides" / "ag-ui.md").read_text()
LOST_SECONDS: Final = 3
WORDS: Final = [f"{number}🌊 " for number in range(40)]
HALF: Final = "".join(WORDS[:20])
TEXT: Final = "".join(WORDS)
DIALOGUE: Final = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": TEXT}]
STARTED: Final = ["RUN_STARTED", *(f"TEXT_MESSAGE_{part}" for part in ("START", "CONTENT", "END"))]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "node_modules" / "@ag-ui").exists(), reason="needs node_modules (npm ci)"),
]


class Reader:
    """A Node process that reads a thread."""

    def __init__(self, file: Path, **task: Any) -> None:
        self._file = file
        environment = os.environ | {"TASK": json.dumps(task), "NODE_TLS_REJECT_UNAUTHORIZED": "0"}
        command = [node(), str(Path(__file__).with_name("ag_ui.mjs"))]
        with file.open("wb") as printed:
            self.process = subprocess.Popen(command, env=environment, stdout=printed)

    def has_half(self) -> bool:
        return f'"text":"{HALF}",' in self._file.read_text()

    def result(self) -> dict[str, Any]:
        assert self.process.wait(PATIENCE_SECONDS) == 0
        return json.loads(self._file.read_text().splitlines()[-1])

    def has_read(self, messages: list[dict[str, str]] = DIALOGUE) -> Any:
        """Check that the reader has read one run, and each event once. Return the last event it has saved."""
        result = self.result()
        assert (result["messages"], result["text"]) == (messages, TEXT)
        assert result["events"] == [*STARTED, "RUN_FINISHED"]
        return result["saved"]

    def has_read_error(self, code: str, text: str = HALF) -> dict[str, Any]:
        result = self.result()
        assert (result["text"], result["code"]) == (text, code)
        assert result["events"] == [*STARTED, "RUN_ERROR"]
        return result


@dataclass
class Room:
    """A thread with its two servers."""

    tidemark: Server
    agent: Server
    headers: dict[str, str]
    gate: Path
    readers: list[Reader] = field(default_factory=list)

    def reader(self, *runs: str, **task: Any) -> Reader:
        given = {"url": f"{self.agent.base_url}/agent", "threadId": "tides 🌊"} | task
        file = self.gate.with_name(f"reader-{len(self.readers)}")
        self.readers.append(Reader(file, runs=runs, tidemarkHeaders=self.headers, **given))
        return self.readers[-1]

    def written(self) -> list[str]:
        """The types of the stored events."""
        url = f"{self.tidemark.base_url}/v1/stream/threads/tides%20%F0%9F%8C%8A"
        chunks = Stream(url, headers=self.headers).follow(live=False)
        return [event["type"] for chunk in chunks for event in chunk.messages]


@contextmanager
def room(
    directory: Path, app: str = ". tests.client.ag_ui_agent:app", path: Path = EXAMPLE, secret: str = SECRET
) -> Iterator[Room]:
    """Live reads end after two seconds, so that readers ask again in the middle, too."""
    with running(tidemark_server("asgi", directory, SSE_SECONDS="2", AUTH_SECRET=secret)) as tidemark:
        scopes = [f"{right}:v1/threads/*" for right in ("read", "write", "manage")]
        environment = {
            "THREADS": f"{tidemark.base_url}/v1/stream/threads",
            "TIDEMARK_TOKEN": token(" ".join(scopes)) if secret else "",
            "LOST_SECONDS": str(LOST_SECONDS),
            "GATE": str(directory / "gate"),
            "PYTHONPATH": str(path),
        }
        agent = Server("agent", [], environment, directory / "none", "/docs")
        agent.command = [sys.executable, "-m", "uvicorn", "--app-dir", *app.split(), f"--port={agent.port}"]
        headers = bearer(scopes[0]) if secret else {}
        with running(agent):
            made = Room(tidemark, agent, headers, directory / "gate")
            try:
                yield made
            finally:
                for reader in made.readers:
                    reader.process.kill()
                    reader.process.wait()


@pytest.mark.parametrize("plain", [False, True])
def test_a_run_that_is_asked_for_twice_runs_once(tmp_path: Path, plain: bool) -> None:
    with room(tmp_path) as made:
        readers = [made.reader("a", plain=plain) for _ in range(2)]
        until(readers[0].has_half)
        assert "run a of this thread has not ended" in made.reader("b", plain=plain).result()["error"]
        readers.append(made.reader("a", plain=plain))
        until(lambda: all(each.has_half() for each in readers))
        made.gate.touch()
        for reader in readers:
            reader.has_read()
        assert made.written().count("RUN_STARTED") == 1


def test_a_second_device_and_a_reload_read_the_thread(tmp_path: Path) -> None:
    """In the middle and after the end, from the beginning and from the last run that was saved."""
    with room(tmp_path) as made:
        first, left = made.reader("a"), made.reader("a", leaveAfter=2)
        assert HALF.startswith(left.result()["messages"][1]["content"])
        until(first.has_half)
        first.process.kill()
        reloaded = made.reader()
        until(reloaded.has_half)
        made.gate.touch()
        saved = reloaded.has_read()
        assert made.reader().has_read() == saved
        newer = made.reader("b", saved=saved).has_read(DIALOGUE * 2)
        assert made.reader(saved=saved).has_read(DIALOGUE * 2) == newer
        nothing = made.reader(saved=newer).result()
        assert (nothing["messages"], nothing["events"]) == (DIALOGUE * 2, [])


def test_events_come_once_while_the_server_is_killed_and_on_a_bad_network(tmp_path: Path) -> None:
    """The server is away for longer than the writer of a lost run is silent."""
    with room(tmp_path) as made, ExitStack() as stack:
        proxies = [stack.enter_context(cutting(made.tidemark.port, seed)) for seed in range(3)]
        readers = [made.reader("a"), *(made.reader("a", by=proxy.base_url) for proxy in proxies)]
        readers.append(made.reader("a", pauseMs=100))
        until(readers[0].has_half)
        made.tidemark.kill_group()
        made.gate.touch()
        back = time.monotonic() + LOST_SECONDS + 1
        until(lambda: time.monotonic() > back)
        made.tidemark.start()
        for reader in readers:
            reader.has_read()
        assert all(proxy.cuts >= 2 for proxy in proxies)


def test_a_run_is_cut_when_its_process_dies_and_the_thread_goes_on(tmp_path: Path) -> None:
    with room(tmp_path) as made:
        reader = made.reader("a")
        until(reader.has_half)
        made.agent.kill_group()
        made.agent.start()
        result = reader.has_read_error("cut")
        assert made.reader().result()["messages"] == result["messages"]
        made.gate.touch()
        made.reader("b", saved=result["saved"]).has_read(result["messages"] + DIALOGUE)


def test_a_silent_run_goes_on_until_it_is_stopped_and_a_failed_one_ends(tmp_path: Path) -> None:
    """The run is silent for longer than a lost one. `abortRun` ends it for all readers."""
    with room(tmp_path) as made:
        reader = made.reader("a")
        until(lambda: reader.has_half() and made.written().count("CUSTOM") > 4)
        for each in (made.reader("a", stopAfter=3), reader):
            each.has_read_error("abort")
        made.reader("fails").has_read_error("failed", WORDS[0])
        assert "HTTP 400" in made.reader("a", threadId="a/b").result()["error"]


@pytest.mark.parametrize("module", ["agent", "langgraph_agent"])
def test_the_page_s_programs_print_the_thread(tmp_path: Path, module: str) -> None:
    """In another process, without a saved run, `ask.mjs` prints the same again."""
    if module == "langgraph_agent" and not LANGGRAPH.exists() and not os.environ.get("CI"):
        pytest.skip("needs .langgraph (make .langgraph/.installed)")
    [app] = re.findall(rf"uvicorn --app-dir (.* {module}:app)", PAGE)
    [(ask, question)] = re.findall(r'&& (node ask.mjs "(.*)")', PAGE)
    [text] = re.findall(r'(?:text = |AIMessage\()"(.*?)"', (EXAMPLE / f"{module}.py").read_text())
    saved = tmp_path / "thread.json"
    with room(tmp_path, app, LANGGRAPH, secret="") as made:
        environment = os.environ | {"AGENT_URL": f"{made.agent.base_url}/agent", "SAVED": str(saved)}

        def printed(command: str) -> list[str]:
            shell = ["sh", "-c", command.replace("node", node())]
            out = subprocess.check_output(shell, cwd=EXAMPLE, env=environment, text=True)
            return out.replace(" \n", "\n").splitlines()

        first = printed(ask)
        assert (first[0], first[-1]) == (f"user: {question}", f"assistant: {text}")
        saved.write_text(json.dumps({"threadId": json.loads(saved.read_text())["threadId"]}))
        assert printed("node ask.mjs") == first


@pytest.mark.parametrize("example", ["ag-ui", "chat"])
def test_an_example_has_the_packages_that_are_tested(example: str) -> None:
    tested = json.loads((ROOT / "package.json").read_text())["devDependencies"]
    wanted = json.loads((EXAMPLE.with_name(example) / "package.json").read_text())["dependencies"]
    assert wanted == {name: tested[name] for name in wanted}
