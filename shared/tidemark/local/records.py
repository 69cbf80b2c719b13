"""The table's stream as an event source mapping reads it: every shard, in the shape of AWS's events."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, Final

from tidemark.aws.clients import make_client

#: What one call returns at most.
LIMIT: Final = 1000
#: How often it is looked for shards that are new.
DESCRIBE_SECONDS: Final = 10.0

Record = dict[str, Any]

# Shard names are shorter here than AWS's: `make_client` has no parameter validated, which would refuse them.
_SETTINGS: Final[dict[str, Any]] = {
    "retries": {"mode": "standard", "total_max_attempts": 2},
    "read_timeout": 10,
}


class StreamRecords:
    """What is written from the moment on at which this was made. Raises botocore's errors."""

    def __init__(self, table_name: str) -> None:
        self._client = make_client("dynamodbstreams", **_SETTINGS)
        table = make_client("dynamodb", **_SETTINGS).describe_table(TableName=table_name)["Table"]
        self._arn: str = table["LatestStreamArn"]
        #: Shard → where to go on; None for one that has been read to its end.
        self._iterators: dict[str, str | None] = {}
        self._described = time.monotonic()
        for shard in self._shards():
            self._iterators[shard] = self._iterator(shard, "LATEST")

    def read(self) -> list[Record]:
        """What has come since the last time, oldest first within each shard."""
        if time.monotonic() - self._described >= DESCRIBE_SECONDS:
            self._look_for_shards()
        records: list[Record] = []
        for shard, iterator in list(self._iterators.items()):
            if iterator is None:
                continue
            reply = self._client.get_records(ShardIterator=iterator, Limit=LIMIT)
            self._iterators[shard] = reply.get("NextShardIterator")
            for record in reply["Records"]:
                # As Lambda hands it on: with where it comes from, and the time as a number.
                change = dict(record["dynamodb"])
                written = change.get("ApproximateCreationDateTime")
                if isinstance(written, datetime):
                    change["ApproximateCreationDateTime"] = written.timestamp()
                records.append(record | {"dynamodb": change, "eventSourceARN": self._arn})
        if any(iterator is None for iterator in self._iterators.values()):
            self._look_for_shards()
        return records

    def _look_for_shards(self) -> None:
        """Shards that appear later are read from their beginning; those that are gone are forgotten."""
        self._described = time.monotonic()
        shards = set(self._shards())
        for shard in shards - self._iterators.keys():
            self._iterators[shard] = self._iterator(shard, "TRIM_HORIZON")
        for shard in self._iterators.keys() - shards:
            del self._iterators[shard]

    def _shards(self) -> list[str]:
        shards: list[str] = []
        page: dict[str, str] = {}
        while True:
            reply = self._client.describe_stream(StreamArn=self._arn, **page)["StreamDescription"]
            shards += [shard["ShardId"] for shard in reply["Shards"]]
            if not reply.get("LastEvaluatedShardId"):
                return shards
            page = {"ExclusiveStartShardId": reply["LastEvaluatedShardId"]}

    def _iterator(self, shard: str, kind: str) -> str:
        reply = self._client.get_shard_iterator(StreamArn=self._arn, ShardId=shard, ShardIteratorType=kind)
        iterator: str = reply["ShardIterator"]
        return iterator
