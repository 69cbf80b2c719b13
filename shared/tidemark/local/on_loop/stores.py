"""The stores for functions that `greenlet_spawn` runs: no call in them blocks the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from tidemark.aws.account import Account
from tidemark.aws.dynamodb import connect_dynamodb
from tidemark.aws.s3 import Objects, connect_objects
from tidemark.aws.sigv4 import Service
from tidemark.blobs.compose import Composition
from tidemark.blobs.store import Blobs
from tidemark.local.configuration import AWS_ALONE, LocalEngines
from tidemark.local.on_loop.greenlets import await_only, greenlet_spawn
from tidemark.local.on_loop.grouped_puts import GroupingTable
from tidemark.local.on_loop.http import LoopHttp
from tidemark.local.on_loop.object_files import ObjectFiles
from tidemark.log.dynamodb import DynamoDBTable
from tidemark.service.concurrency import Run
from tidemark.service.stores import Stores
from tidemark.settings import Settings

#: Each has a connection of its own.
_AT_ONCE: Final = 16

_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")


def sleep(seconds: float) -> None:
    await_only(asyncio.sleep(seconds))


class Concurrently:
    """`service.concurrency.Concurrency` on the loop."""

    def pair(self, one: Callable[[], _A], other: Callable[[], _B]) -> tuple[_A, _B]:
        first, second = await_only(asyncio.gather(greenlet_spawn(one), greenlet_spawn(other)))
        return first, second

    def each(self, call: Callable[[_A], _T], items: Sequence[_A]) -> list[_T]:
        results: dict[int, _T] = {}
        left = iter(enumerate(items))

        def work_off() -> None:
            for index, item in left:
                results[index] = call(item)

        workers = range(min(_AT_ONCE, len(items)))
        await_only(asyncio.gather(*(greenlet_spawn(work_off) for _ in workers)))
        return [results[index] for index in range(len(items))]

    def compute(self, call: Callable[[], _T]) -> _T:
        return await_only(asyncio.to_thread(call))

    def sleep(self, seconds: float) -> None:
        sleep(seconds)


@dataclass(frozen=True, slots=True)
class _Blobs:
    """Whole objects are carried on the loop. Everything else is boto3's, which blocks, on a thread."""

    objects: Objects
    blobs: Blobs
    pool: ThreadPoolExecutor

    def _call(self, call: Callable[[], _T]) -> _T:
        return await_only(asyncio.get_running_loop().run_in_executor(self.pool, call))

    def put(self, key: str, data: bytes) -> None:
        self.objects.put(key, data)

    def get(self, key: str, size: int | None = None) -> bytes:
        return self.objects.get(key, size)

    def get_range(self, key: str, first_byte: int, size: int) -> bytes:
        return self.objects.get_range(key, first_byte, size)

    def size(self, key: str) -> int | None:
        return self._call(lambda: self.blobs.size(key))

    def compose(self, key: str, wanted: Composition) -> None:
        self._call(lambda: self.blobs.compose(key, wanted))

    def url_to_get(self, key: str, seconds: int, content_type: str | None = None) -> str:
        return self._call(lambda: self.blobs.url_to_get(key, seconds, content_type))

    def url_to_put(self, key: str, seconds: int) -> str:
        return self._call(lambda: self.blobs.url_to_put(key, seconds))

    def delete(self, *keys: str) -> None:
        self._call(lambda: self.blobs.delete(*keys))

    def delete_prefix(self, prefix: str) -> None:
        self._call(lambda: self.blobs.delete_prefix(prefix))


class OnLoop:
    """A second set of a process's stores, for functions run by `run`. Its caches (tails, recent batches) are
    those of `stores`."""

    def __init__(
        self,
        stores: Stores,
        settings: Settings,
        pool: ThreadPoolExecutor,
        engines: LocalEngines = AWS_ALONE,
    ) -> None:
        self._https: list[LoopHttp] = []
        account = Account()
        dynamodb = connect_dynamodb(account, self._connect)
        objects = connect_objects(account, settings.bucket_name, self._connect)
        dynamodb.sleep = objects.sleep = sleep
        if engines.object_files is not None:
            objects.send = ObjectFiles(engines.object_files / settings.bucket_name, objects.send)
        table = GroupingTable if engines.group_puts else DynamoDBTable
        self.run: Run = greenlet_spawn
        self.stores = replace(
            stores,
            table=table(dynamodb, settings.table_name),
            blobs=_Blobs(objects, stores.blobs, pool),
            concurrency=Concurrently(),
        )

    def _connect(self, service: Service, answer_seconds: float) -> LoopHttp:
        self._https.append(LoopHttp(service, answer_seconds))
        return self._https[-1]

    async def close(self) -> None:
        for http in self._https:
            await http.close()
