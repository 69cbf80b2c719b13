"""An embedded system behind the application, in this process."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import cast

from tests.http.asgi import Door
from tests.support import Process
from tidemark.server.system import EmbeddedSystem


@contextmanager
def serving(system: EmbeddedSystem) -> Iterator[Door]:
    """Calls are made by turns, as in a server."""
    with asyncio.Runner() as runner, ExitStack() as stack:

        async def begin() -> None:
            stack.enter_context(system.database.serving())

        runner.run(begin())
        yield Door(cast(Process, system), lambda *_: system.backend, runner, system.settings)
