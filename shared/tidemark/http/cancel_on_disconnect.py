"""Work that is cancelled when its client hangs up: nobody would read the response."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

_T = TypeVar("_T")


class HungUp(Exception):
    """The client hung up before its response was ready."""


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """The work's result. Raises HungUp, and then the work has been stopped."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(hang_up(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HungUp
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def hang_up(receive: Receive) -> None:
    """Returns once the client has disconnected. Data that it still sends is discarded."""
    while (await receive())["type"] != "http.disconnect":
        pass
