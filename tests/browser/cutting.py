"""A bad network: a proxy that cuts connections off wherever their bytes happen to be.

It speaks TLS to the browser, as everything deployed does. Over plain HTTP Chromium takes an answer that was
cut off inside its headers for a whole one with an empty body, over HTTPS for the failure that it is.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

#: How much of the answers gets through before the cut. The last is more than all a test's streams hold, so
#: that a reader who is far behind gets on now and then.
_BYTES: Final = (900, 1500, 2000, 4000, 200_000)
#: How long a connection lasts, at most.
_SECONDS: Final = (0.05, 0.2, 0.4, 0.8, 2.0)


@cache
def _tls() -> ssl.SSLContext:
    """With a certificate that nobody has signed: the browser is told not to mind."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")]), datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "both.pem")
        file.write_bytes(private + builder.sign(key, hashes.SHA256()).public_bytes(pem))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
    return context


class CuttingProxy:
    """Everything runs on one event loop of its own thread."""

    def __init__(self, upstream_port: int, seed: int) -> None:
        self._upstream_port = upstream_port
        self._chance = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.connections = 0
        self.cuts = 0

    @property
    def base_url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=_tls()))
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        except OSError:
            writer.close()
            return
        forth = asyncio.ensure_future(_pass_on(reader, upstream_writer))
        back = asyncio.ensure_future(self._pass_back(upstream_reader, writer))
        try:
            await asyncio.wait([forth, back], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (forth, back):
                each.cancel()
            for end in (writer, upstream_writer):
                self._cut(end)

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """So many bytes, for so long, and no more."""
        left = self._chance.choice(_BYTES)
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(self._chance.choice(_SECONDS)):
                while left > 0:
                    data = await reader.read(min(left, 65536))
                    if not data:
                        return
                    writer.write(data)
                    await writer.drain()
                    left -= len(data)
        self.cuts += 1

    def _cut(self, writer: asyncio.StreamWriter) -> None:
        """With a proper end of the connection, or without."""
        if self._chance.random() < 0.5:
            writer.close()
        else:
            writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)


@contextmanager
def cutting(upstream_port: int, seed: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(upstream_port, seed)
    started = threading.Event()
    thread = threading.Thread(target=proxy.run, args=[started], daemon=True)
    thread.start()
    started.wait()
    try:
        yield proxy
    finally:
        proxy.stop()
        thread.join()
