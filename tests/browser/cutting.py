"""A bad network: a proxy that cuts connections off wherever their bytes happen to be.

It speaks TLS to the browser, as everything deployed does. Over plain HTTP Chromium takes an answer that was
cut off inside its headers for a whole one with an empty body, over HTTPS for the failure that it is.
"""

import asyncio
import random
import ssl
import tempfile
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

from tests.chaos.listener import Listener

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


class CuttingProxy(Listener):
    def __init__(self, upstream_port: int, seed: int) -> None:
        super().__init__()
        self._upstream_port = upstream_port
        self._chance = random.Random(seed)
        self.connections = 0
        self.cuts = 0

    @property
    def base_url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
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
    with CuttingProxy(upstream_port, seed).on_a_thread(ssl=_tls()) as proxy:
        yield proxy
