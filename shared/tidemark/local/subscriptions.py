"""Whether anybody is subscribed, or keeps a registry of streams: without these the local system reads neither
queue nor stream for them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Final

from tidemark.aws.sqs import WorkQueue, sqs_client
from tidemark.local.pump import PollingDemand
from tidemark.protocol.registry import REGISTRY_ID
from tidemark.server.asgi import Application, Receive, Scope, Send
from tidemark.server.standard_error import report
from tidemark.service.stores import Stores
from tidemark.service.subscriptions.recover import recover
from tidemark.wake.attention import Changed, encode_attention

#: How long the first creation waits for the stream to be read. What it would miss is found by `recover`.
POSITION_SECONDS: Final = 5.0
_CONTROL: Final = "/__ds/subscriptions/"
_REGISTRY: Final = f"/{REGISTRY_ID}"


class SubscriptionWatch:
    """ASGI middleware, and what the pumps ask. It sees each creation pass by."""

    def __init__(
        self,
        application: Application,
        stores: Stores,
        queue_url: str,
        *,
        is_wanted: bool = False,
        has_registry: bool = False,
    ) -> None:
        """`is_wanted`: there are subscriptions already. `has_registry`: there is a registry of streams."""
        self._application = application
        self._stores = stores
        self._queue = WorkQueue(sqs_client, queue_url)
        #: Set while the table's stream is read; until a pump says otherwise, nobody reads it.
        self.following = threading.Event()
        self._wanted = is_wanted
        self._has_registry = has_registry

    @property
    def is_wanted(self) -> bool:
        return self._wanted

    @property
    def wants_records(self) -> bool:
        return self._wanted or self._has_registry

    def recover(self) -> None:
        """Called when the stream is read from the present on: what was written before it is looked for."""
        try:
            found = recover(self._stores)
            if found:
                self._wanted = True
                self._queue.send([encode_attention(Changed(each)) for each in found])
        except Exception as error:  # noqa: BLE001 - the reading of the stream goes on
            report(f"subscriptions cannot be looked for: {error!r}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "PUT":
            wanted_before = self.wants_records
            self._wanted = self._wanted or _CONTROL in scope["path"]
            self._has_registry = self._has_registry or scope["path"].endswith(_REGISTRY)
            if self.wants_records and not wanted_before:
                await asyncio.to_thread(self.following.wait, POSITION_SECONDS)
        await self._application(scope, receive, send)


def watched(demand: PollingDemand, watch: SubscriptionWatch) -> PollingDemand:
    """The stream is also read while there are subscriptions or a registry."""

    def on_positioned() -> None:
        demand.on_positioned()
        watch.recover()

    return replace(
        demand, is_wanted=lambda: watch.wants_records or demand.is_wanted(), on_positioned=on_positioned
    )
