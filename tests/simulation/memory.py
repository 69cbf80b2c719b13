"""Processes on a table and a bucket in memory: hundreds of histories in the time of a few on an engine."""

from typing import Any

from tests.simulation.objects import SimulatedBlobs, SimulatedBucket
from tests.simulation.table import SimulatedTable
from tests.simulation.tasks import Tasks
from tests.support import Calls, Clock, Process, World
from tidemark.aws.dynamodb import DynamoDB
from tidemark.aws.s3 import Objects
from tidemark.log.dynamodb_table import DynamoDBTable
from tidemark.service.stores import Stores
from tidemark.settings import Settings


class MemoryWorld(World):
    """Any number of processes on one table and one bucket in memory, one call after the other."""

    def __init__(self) -> None:
        super().__init__("memory", "memory", Clock())
        self.table = SimulatedTable(self.clock)
        self.bucket = SimulatedBucket()

    def process(self, *, clock: Any = None) -> Process:
        dynamodb, objects = DynamoDB(self.table.send), Objects(self.bucket.send)
        dynamodb.sleep = objects.sleep = lambda _seconds: None
        blobs = SimulatedBlobs(self.bucket, objects, lambda: None)
        stores = Stores(
            DynamoDBTable(dynamodb, "memory"), blobs, clock_ms=clock or self.clock, concurrency=Tasks()
        )
        return Process(stores, dynamodb, objects, _no_s3, Calls(dynamodb, objects), Settings())


def _no_s3() -> Any:
    raise AssertionError("there is no S3 to connect to")
