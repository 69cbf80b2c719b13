"""A server in memory, on a thread of this process: for tests of programs that use one."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from tidemark.http.app import create_app
from tidemark.server.blob_urls import BlobUrls
from tidemark.server.http_server import serve
from tidemark.server.ports import LOOPBACK, listening_socket, port_of
from tidemark.server.system import EmbeddedSystem
from tidemark.settings import Settings

#: Requests that still wait at the end are cut off after this time.
_GRACE_SECONDS: Final = 0.05
_READY_SECONDS: Final = 60.0


@contextmanager
def server_in_memory(settings: Settings | None = None) -> Iterator[str]:
    """The address of a server that is empty, until the end of the block."""
    ready = threading.Event()
    with (
        listening_socket(LOOPBACK, 0) as listener,
        tempfile.TemporaryDirectory(prefix="tidemark-") as folder,
    ):
        url = f"http://{LOOPBACK}:{port_of(listener)}"
        asked = settings or Settings()
        asked = replace(asked, public_url=url, webhook_keys=asked.webhook_keys or f"{folder}/webhook-keys")
        system = EmbeddedSystem(asked, None, Path(folder) / "blobs")
        loop, stopping = asyncio.new_event_loop(), asyncio.Event()

        async def run() -> None:
            application = BlobUrls(create_app(system.backend), system.blobs)
            workers = system.workers(janitor_seconds=0)
            with system.database.serving():
                for worker in workers:
                    worker.start()
                await serve(application, listener, ready.set, stopping, grace_seconds=_GRACE_SECONDS)
                for worker in workers:
                    worker.stop()

        thread = threading.Thread(target=loop.run_until_complete, args=(run(),), name="tidemark", daemon=True)
        thread.start()
        try:
            ready.wait(_READY_SECONDS)
            yield url
        finally:
            loop.call_soon_threadsafe(stopping.set)
            thread.join()
            loop.close()
            system.close()
