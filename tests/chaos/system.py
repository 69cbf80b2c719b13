"""The system under test: the server, which has its engine in it, and with `lambda` an emulator of S3 and SQS.
A proxy is in front of each; with `lambda` also between the handlers and the engine.

The emulator is not the server's child here, so that it can die alone.
"""

import asyncio
import json
import random
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.chaos.disk import Disk
from tests.chaos.hurried import ENGINE_PORT, PACK_AFTER_SECONDS, PROXIES, SOCKETS_PORT
from tests.chaos.proxy import Event, Proxy
from tests.chaos.schedule import CLIENTS, DYNAMODB, EMULATOR, GROUP, S3, SERVER, SOCKETS, SQS, Fault, Kind
from tests.conformance.servers import answers, own_environment
from tests.ports import free_port
from tests.stack.emulators import VARIABLES, Child, EngineFailed, Ministack
from tidemark.log.schema import PACK_INDEX

PARTS: Final = (EMULATOR, SERVER)
#: In front of which part each proxy stands.
BEHIND: Final = {DYNAMODB: SERVER, S3: EMULATOR, SQS: EMULATOR, CLIENTS: SERVER, SOCKETS: SERVER}
_READY_SECONDS: Final = 240.0
_HEALTHY_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
_LONG_POLL_SECONDS: Final = "5"
_JANITOR_SECONDS: Final = "3"


class SystemFailed(RuntimeError):
    """A part did not come back; the message ends with the end of its log."""


class System:
    """Started, harmed and repaired from one event loop, in the main thread (see `emulators.Child`)."""

    def __init__(self, via: str, folder: Path, disk: Disk, seed: int) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self.deaths: list[str] = []
        self._via = via
        self._disk = disk
        self.is_embedded = via == "asgi"
        self._parts = (SERVER,) if self.is_embedded else PARTS
        self._proxies = {
            link: Proxy(link, random.Random(f"{seed} {link}"), self.events.append)
            for link in BEHIND
            if link == CLIENTS or not self.is_embedded
        }
        (disk.path / "s3").mkdir()
        self._server = Child("the server", folder / "server.log")
        self._emulator = Ministack(["s3", "sqs"], disk.path / "s3", folder / "ministack.log")
        self._children = {SERVER: self._server, EMULATOR: self._emulator.child}
        self._engine_port, self._sockets_port = free_port(), free_port()
        #: Past the proxy.
        self.server_port = free_port()
        #: Parts that a fault holds down: nobody repairs them meanwhile.
        self._held: set[str] = set()
        #: A part that ends by itself while a fault ends it is started once.
        self._starting = {part: asyncio.Lock() for part in self._parts}
        self._stopping = False

    @property
    def clients_port(self) -> int:
        """Through the proxy."""
        return self._proxies[CLIENTS].port

    @staticmethod
    def is_link(name: str) -> bool:
        """Whether it names a connection, and not a part."""
        return name in BEHIND

    @property
    def hits(self) -> int:
        """Requests that a fault of a connection has hit."""
        return sum(proxy.hits for proxy in self._proxies.values())

    async def start(self) -> None:
        for proxy in self._proxies.values():
            await proxy.start()
        self._proxies[CLIENTS].upstream_port = self.server_port
        if not self.is_embedded:
            self._proxies[DYNAMODB].upstream_port = self._engine_port
            self._proxies[SOCKETS].upstream_port = self._sockets_port
        for part in self._parts:
            await self._start(part)

    async def supervise(self) -> None:
        """Brings back what has ended: killed by a fault, or by itself, which is noted."""
        while not self._stopping:
            for part in self._parts:
                if part not in self._held and not self._is_running(part):
                    self.note("ended by itself", self._children[part].describe_end())
                    self.deaths.append(part)
                    await self._start(part)
            await asyncio.sleep(_POLL_SECONDS)

    async def suffer(self, fault: Fault) -> None:
        """One fault from its beginning to its end."""
        if fault.where in BEHIND:
            active = self._proxies[fault.where].active
            active.append(fault)
            await asyncio.sleep(fault.seconds)
            active.remove(fault)
            return
        parts = self._parts if fault.where == GROUP else (fault.where,)
        if fault.kind is Kind.DISK_FULL:
            self._disk.fill()
            self.note("disk full", f"{fault.seconds:.1f} s")
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                self._disk.empty()
        elif fault.kind is Kind.STOP:
            await self._stop_and_continue(parts, fault.seconds)
        else:
            number = signal.SIGKILL if fault.kind is Kind.KILL else signal.SIGTERM
            await self._end_for(parts, number, fault.seconds)

    async def restart_whole(self) -> None:
        """Everything ends, and starts again from what is on disk."""
        await self._end_for(self._parts, signal.SIGKILL, 0.0)

    async def calm(self) -> None:
        """Whatever a network still holds arrives."""
        for proxy in self._proxies.values():
            await proxy.deliver_what_is_late()

    async def close(self) -> None:
        self._stopping = True
        for part in self._parts:
            self._signal(part, signal.SIGCONT)
            self._signal(part, signal.SIGKILL)
        for proxy in self._proxies.values():
            await proxy.close()
        for part in self._parts:
            self._children[part].stop()

    async def _stop_and_continue(self, parts: tuple[str, ...], seconds: float) -> None:
        self._held.update(parts)
        for part in parts:
            self._signal(part, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            for part in parts:
                self._signal(part, signal.SIGCONT)
            self._held.difference_update(parts)
        self.note("stopped and continued", f"{' '.join(parts)} for {seconds:.1f} s")

    async def _end_for(self, parts: tuple[str, ...], number: signal.Signals, seconds: float) -> None:
        self._held.update(parts)
        try:
            for part in parts:
                self._signal(part, number)
            self.note(number.name, " ".join(parts))
            for part in parts:
                await self._wait_for_end(part)
            await asyncio.sleep(seconds)
            for part in (each for each in self._parts if each in parts):
                await self._start(part)
        finally:
            self._held.difference_update(parts)

    async def _wait_for_end(self, part: str) -> None:
        deadline = time.monotonic() + 10
        while self._is_running(part):
            if time.monotonic() > deadline:
                self._signal(part, signal.SIGKILL)
            await asyncio.sleep(0.01)

    async def _start(self, part: str) -> None:
        """Returns once it is ready. The disk may be full and storage unreachable: it is tried again."""
        deadline = time.monotonic() + _READY_SECONDS
        async with self._starting[part]:
            while not self._is_running(part):
                try:
                    await (self._start_server() if part == SERVER else self._start_emulator())
                except (EngineFailed, OSError) as failure:
                    if time.monotonic() > deadline:
                        raise SystemFailed(f"{part} does not start: {failure}") from failure
                    self._signal(part, signal.SIGKILL)
                    await self._wait_for_end(part)
                    await asyncio.sleep(0.2)

    async def _start_emulator(self) -> None:
        self._emulator.start()
        await asyncio.to_thread(self._emulator.wait_until_ready)
        for link in (S3, SQS):
            self._proxies[link].upstream_port = self._emulator.port

    async def _start_server(self) -> None:
        """Returns once it is healthy, or has had the time to be: under load the answer may take longer than
        the asking does. Raises EngineFailed where it ends before."""
        if not self.is_embedded:
            self._proxies[DYNAMODB].forget_open_transactions()
        self._server.start([sys.executable, "-m", "tests.chaos.hurried"], self._environment())
        url = f"http://127.0.0.1:{self.server_port}/v1/health"
        deadline = time.monotonic() + _HEALTHY_SECONDS
        while not await asyncio.to_thread(answers, url) and time.monotonic() < deadline:
            if not self._is_running(SERVER):
                raise EngineFailed(self._server.describe_end())
            await asyncio.sleep(_POLL_SECONDS)

    def _environment(self) -> dict[str, str]:
        made = own_environment() | {
            "VIA": self._via,
            "HOST": "127.0.0.1",
            "PORT": str(self.server_port),
            "DATA_DIR": str(self._disk.path / "data"),
            "JANITOR_SECONDS": _JANITOR_SECONDS,
            "LONG_POLL_SECONDS": _LONG_POLL_SECONDS,
            "PACK_AFTER_SECONDS": str(PACK_AFTER_SECONDS),
        }
        if not self.is_embedded:
            ports = {VARIABLES[link]: self._proxies[link].port for link in (DYNAMODB, S3, SQS)}
            ports["SOCKET_ENDPOINT"] = self._proxies[SOCKETS].port
            proxies = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
            own = {ENGINE_PORT: str(self._engine_port), SOCKETS_PORT: str(self._sockets_port)}
            made |= {PROXIES: json.dumps(proxies), **own}
        return made

    def count_packs(self) -> int:
        """How many are in the table, at which nobody writes any more."""
        table = "tidemark.db" if self.is_embedded else "lambda/tables/tidemark.db"
        with closing(sqlite3.connect(self._disk.path / "data" / table)) as db:
            asked = "SELECT count(*) FROM items WHERE CAST(item AS TEXT) LIKE ?"
            count: int = db.execute(asked, (f'%"{PACK_INDEX}":%',)).fetchone()[0]
            return count

    def _is_running(self, part: str) -> bool:
        process = self._children[part]._process
        return process is not None and process.poll() is None

    def _signal(self, part: str, number: signal.Signals) -> None:
        if (process := self._children[part]._process) is not None:
            process.send_signal(number)  # Does nothing where it has ended.

    def note(self, what: str, detail: str) -> None:
        self.events.append(Event(time.monotonic(), "system", what, "", detail))
