"""Limits for the subscriptions of a stream and of a tenant: an append leads to a delivery for each follower
of its stream.

Followers are counted when a subscription is created or names streams, and never on an append. Concurrent
requests may exceed a limit by their number. Subscriptions beyond a limit go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tidemark.log.buckets import list_records
from tidemark.log.table import Table
from tidemark.protocol.errors import TooManySubscriptions
from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.subscriptions.configuration import (
    SubscriptionConfiguration,
    follows,
    literal_prefix,
    matching_path,
)
from tidemark.subscriptions.records import RosterEntry
from tidemark.subscriptions.storage import load_followers, load_roster

#: Subscriptions that follow one stream, by name or by pattern.
MAX_OF_A_STREAM: Final = 100
#: Subscriptions whose ids begin with the prefix that a token may manage. A token for all ids has no limit.
MAX_OF_A_PREFIX: Final = 1_000
#: Streams, and the most frequent other patterns, for which a new pattern is checked.
_SAMPLE: Final = 16


def check_creation(table: Table, name: str, asked: SubscriptionConfiguration, prefix: str) -> None:
    """Takes a query for the roster. With a hundred subscriptions or more there is one for streams of the
    pattern, and one for each stream that is checked. Raises TooManySubscriptions."""
    roster = load_roster(table)
    count = sum(entry.subscription_id.startswith(prefix) for entry in roster)
    if prefix and count >= MAX_OF_A_PREFIX:
        raise TooManySubscriptions(f"have an id that begins with {prefix!r}", count, MAX_OF_A_PREFIX)
    if len(roster) >= MAX_OF_A_STREAM:
        paths = dict.fromkeys([*asked.streams, *_examples(table, roster, asked)])
        _check_streams(table, name, paths, roster)


def check_naming(table: Table, name: str, paths: Sequence[str]) -> None:
    """Takes a query for the roster. With a hundred subscriptions or more there is one for each stream. Raises
    TooManySubscriptions."""
    roster = load_roster(table)
    if len(roster) >= MAX_OF_A_STREAM:
        _check_streams(table, name, paths, roster)


def _check_streams(table: Table, name: str, paths: Iterable[str], roster: Sequence[RosterEntry]) -> None:
    by_name = any(entry.has_explicit for entry in roster)
    for path in paths:
        found = {each.subscription_id for each in roster if follows(each.pattern, each.wake_stream, path)}
        if by_name:
            found |= {follower.subscription_id for follower in load_followers(table, path)}
        if name not in found and len(found) >= MAX_OF_A_STREAM:
            raise TooManySubscriptions(f"follow the stream {path!r}", len(found), MAX_OF_A_STREAM)


def _examples(table: Table, roster: Sequence[RosterEntry], asked: SubscriptionConfiguration) -> Iterator[str]:
    """Paths that the pattern takes in: its own example, streams that exist, and examples of the most frequent
    other patterns."""
    if asked.pattern is None:
        return
    records, _ = list_records(table, PLAIN_BUCKET, literal_prefix(asked.pattern), "", _SAMPLE)
    frequent = Counter(entry.pattern for entry in roster if entry.pattern is not None).most_common(_SAMPLE)
    others = [matching_path(pattern) for pattern, _ in frequent]
    for path in (matching_path(asked.pattern), *(record.key.stream_id for record in records), *others):
        if asked.follows(path):
            yield path
