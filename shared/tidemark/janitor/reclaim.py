"""Removes the log of a stream that has ended, and its objects in S3."""

from __future__ import annotations

import logging

from tidemark.blobs.store import log_prefix, snapshot_prefix
from tidemark.log.due import settle
from tidemark.log.read import load_last
from tidemark.log.records import Due
from tidemark.log.schema import PK, SK, batch_sk, log_pk, producer_pk
from tidemark.log.table import MAX_DELETES, Table
from tidemark.service.stores import Stores

_log = logging.getLogger("tidemark")


def reclaim(stores: Stores, due: Due) -> bool:
    """Remove the log, and then its objects in S3. Returns False for a log that has not ended: it must not be
    removed, whatever its entry says."""
    if not remove_log(stores.table, due):
        _log.error("%s is not reclaimed: its log has no tombstone", due.key)
        return False
    stores.blobs.delete_prefix(log_prefix(due.incarnation))
    stores.blobs.delete_prefix(snapshot_prefix(due.incarnation))
    settle(stores.table, due)
    return True


def remove_log(table: Table, due: Due) -> bool:
    """Remove every batch and producer of an incarnation, and the tombstone last of all: that it is
    there, or that there is nothing any more, is the proof that the stream has ended. False, and
    nothing is removed, where the log goes on. Safe to repeat.
    """
    pk = log_pk(due.key, due.incarnation)
    last = load_last(table, pk)
    if last is not None and not last.tombstone:
        return False
    below = batch_sk(last) if last else "~"
    for partition, end in ((pk, below), (producer_pk(due.incarnation), "~")):
        more = True
        while more:
            found, more = table.query(partition, at_least=" ", at_most=end, attributes=(PK, SK), limit=1000)
            keys = [key for key in found if key[SK]["S"] != end]
            for start in range(0, len(keys), MAX_DELETES):
                table.delete_many(keys[start : start + MAX_DELETES])
    if last is not None:
        table.delete({PK: {"S": pk}, SK: {"S": below}})
    return True
