"""The stored records of subscriptions, and their items in the table: the subscription, its roster entry,
followers, links and pending marks; and the keys that sign webhooks."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import astuple, dataclass, replace
from typing import Final

import orjson

from tidemark.log.schema.batches import binary
from tidemark.log.schema.items import CREATED_MS, INCARNATION, PK, SK, Item, Key, make_key, number
from tidemark.protocol.offset import render_offset
from tidemark.subscriptions.configuration import SubscriptionConfiguration, SubscriptionKind
from tidemark.subscriptions.shared import Window, decode_window, encode_window
from tidemark.subscriptions.state import DeliveryState


@dataclass(frozen=True, slots=True)
class SubscriptionRecord:
    """A subscription that exists. A new subscription of the same id has another incarnation and other links.

    `secret` signs the tokens of deliveries. `active`: the creation has linked the streams that existed.
    `version` rises with each write of the item, and `write_id` identifies that write.
    """

    subscription_id: str
    incarnation: str
    configuration: SubscriptionConfiguration
    secret: str
    created_ms: int
    delivery: DeliveryState
    active: bool
    version: int
    write_id: str


@dataclass(frozen=True, slots=True)
class SharedRecord:
    """The state of a shared subscription. The item is not the subscription's: a take notifies nobody."""

    subscription_id: str
    incarnation: str
    window: Window
    version: int = 1
    write_id: str = ""


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """A subscription in the roster, with the streams that it may follow. The notifier needs no more.
    `has_explicit`: the subscription names streams one by one."""

    subscription_id: str
    incarnation: str
    pattern: str | None
    wake_stream: str | None
    has_explicit: bool


@dataclass(frozen=True, slots=True)
class StreamFollower:
    """A subscription that names the stream at `path`."""

    path: str
    subscription_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class StreamLink:
    """A stream that a subscription follows, and the offset that its workers acked. `acked` is valid for
    `stream_incarnation` only: a later stream of that name is followed from its beginning."""

    subscription_incarnation: str
    path: str
    explicit: bool
    acked: int
    stream_incarnation: str


@dataclass(frozen=True, slots=True)
class PendingMark:
    """The stream has an append at `start` or later, which the subscription has not looked at yet."""

    subscription_incarnation: str
    path: str
    stream_incarnation: str
    start: int


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The public half of a key that signs webhooks. `public` is its 32 bytes in base64url. The newest key
    signs, and the others stay published until they are removed."""

    kid: str
    public: str
    created_ms: int


# Attributes of a subscription; CREATED_MS and INCARNATION are further ones.
#: A JSON array of the fields in their order. Earlier releases can read it if it has no dead letters.
CONFIGURATION: Final = "cf"
TOKEN_SECRET: Final = "ts"
DELIVERY_STATE: Final = "ws"  # A JSON array of seven fields; a slow webhook has an eighth.
DELIVERED_MS: Final = "dv"  # Not in the state: earlier releases do not accept a further field there.
ACTIVE: Final = "ac"
#: Of a shared subscription: a JSON array of key and offset. Earlier releases, which do not know this kind,
#: read a pull-wake subscription without a wake stream.
SHARED_SETTINGS: Final = "sd"
VERSION: Final = "ve"
WRITE_ID: Final = "wi"

# Attributes of a roster entry; followers have SUBSCRIPTION_ID too.
SUBSCRIPTION_ID: Final = "su"
PATTERN: Final = "pt"
WAKE_STREAM: Final = "wk"
HAS_EXPLICIT: Final = "hx"

# Attributes of links and pending marks.
EXPLICIT: Final = "ex"
ACKED: Final = "ak"
STREAM_INCARNATION: Final = "si"
START: Final = "sa"

#: Of the state of a shared subscription: the messages behind ACKED.
SHARED_WINDOW: Final = "wd"

# The attribute of a signing key.
PUBLIC_KEY: Final = "pu"

#: Sort keys that begin with a slash lie between these two.
SLASH: Final = "/"
BEHIND_SLASH: Final = "0"
ROSTER_PK: Final = "roster"
#: Prefix of the partition of a stream's followers. Only plain streams have followers: the key has no bucket.
FOLLOWERS: Final = "follow/"
#: Prefixes of the partitions of a subscription's links and marks, before its incarnation.
LINKS: Final = "link/"
MARKS: Final = "pending/"
SIGNING_KEYS_PK: Final = "keys"


def subscription_key(subscription_id: str) -> Key:
    return make_key(f"sub/{subscription_id}", ".")


def decode_subscription_pk(pk: str) -> str | None:
    """The subscription's id, or None if `pk` belongs to another kind of item."""
    return pk.removeprefix("sub/") if pk.startswith("sub/") else None


def encode_subscription(record: SubscriptionRecord) -> Item:
    kind, *asked, key, offset = astuple(record.configuration)
    is_shared = kind is SubscriptionKind.SHARED
    if record.configuration.max_attempts is None:
        asked = asked[:-2]
    *state, delivered_ms, slow = astuple(record.delivery)
    item = subscription_key(record.subscription_id) | {
        INCARNATION: {"S": record.incarnation},
        CONFIGURATION: {
            "S": orjson.dumps([(SubscriptionKind.PULL_WAKE if is_shared else kind).value, *asked]).decode()
        },
        TOKEN_SECRET: {"S": record.secret},
        CREATED_MS: {"N": str(record.created_ms)},
        DELIVERY_STATE: {"S": orjson.dumps([*state, *([True] if slow else [])]).decode()},
        VERSION: {"N": str(record.version)},
        WRITE_ID: {"S": record.write_id},
    }
    delivered = {} if delivered_ms is None else {DELIVERED_MS: {"N": str(delivered_ms)}}
    shared = {SHARED_SETTINGS: {"S": orjson.dumps([key, offset]).decode()}} if is_shared else {}
    return item | delivered | shared | ({ACTIVE: {"BOOL": True}} if record.active else {})


def decode_subscription(item: Item) -> SubscriptionRecord:
    """The item must not be an end mark."""
    kind, pattern, streams, *asked = orjson.loads(item[CONFIGURATION]["S"])
    state = orjson.loads(item[DELIVERY_STATE]["S"])
    delivered_ms = number(item, DELIVERED_MS)
    configuration = SubscriptionConfiguration(SubscriptionKind(kind), pattern, tuple(streams), *asked)
    if SHARED_SETTINGS in item:
        key, offset = orjson.loads(item[SHARED_SETTINGS]["S"])
        configuration = replace(configuration, kind=SubscriptionKind.SHARED, key=key, offset=offset)
    return SubscriptionRecord(
        subscription_id=item[PK]["S"].removeprefix("sub/"),
        incarnation=item[INCARNATION]["S"],
        configuration=configuration,
        secret=item[TOKEN_SECRET]["S"],
        created_ms=int(item[CREATED_MS]["N"]),
        delivery=replace(DeliveryState(*state[:7]), delivered_ms=delivered_ms, slow=len(state) > 7),
        active=ACTIVE in item,
        version=int(item[VERSION]["N"]),
        write_id=item[WRITE_ID]["S"],
    )


def shared_key(subscription_id: str) -> Key:
    return make_key(f"share/{subscription_id}", ".")


def encode_shared(record: SharedRecord) -> Item:
    return shared_key(record.subscription_id) | {
        INCARNATION: {"S": record.incarnation},
        STREAM_INCARNATION: {"S": record.window.stream_incarnation},
        ACKED: {"N": str(record.window.committed)},
        SHARED_WINDOW: binary(encode_window(record.window)),
        VERSION: {"N": str(record.version)},
        WRITE_ID: {"S": record.write_id},
    }


def decode_shared(item: Item) -> SharedRecord:
    encoded, acked = b64decode(item[SHARED_WINDOW]["B"]), int(item[ACKED]["N"])
    return SharedRecord(
        subscription_id=item[PK]["S"].removeprefix("share/"),
        incarnation=item[INCARNATION]["S"],
        window=decode_window(item[STREAM_INCARNATION]["S"], acked, encoded),
        version=int(item[VERSION]["N"]),
        write_id=item[WRITE_ID]["S"],
    )


def roster_key(subscription_incarnation: str) -> Key:
    return make_key(ROSTER_PK, SLASH + subscription_incarnation)


def encode_roster_entry(entry: RosterEntry) -> Item:
    item = roster_key(entry.incarnation) | {SUBSCRIPTION_ID: {"S": entry.subscription_id}}
    if entry.pattern is not None:
        item[PATTERN] = {"S": entry.pattern}
    if entry.wake_stream is not None:
        item[WAKE_STREAM] = {"S": entry.wake_stream}
    if entry.has_explicit:
        item[HAS_EXPLICIT] = {"BOOL": True}
    return item


def decode_roster_entry(item: Item) -> RosterEntry:
    return RosterEntry(
        subscription_id=item[SUBSCRIPTION_ID]["S"],
        incarnation=item[SK]["S"].removeprefix(SLASH),
        pattern=item[PATTERN]["S"] if PATTERN in item else None,
        wake_stream=item[WAKE_STREAM]["S"] if WAKE_STREAM in item else None,
        has_explicit=HAS_EXPLICIT in item,
    )


def follower_key(follower: StreamFollower) -> Key:
    return make_key(FOLLOWERS + follower.path, SLASH + follower.incarnation)


def encode_follower(follower: StreamFollower) -> Item:
    return follower_key(follower) | {SUBSCRIPTION_ID: {"S": follower.subscription_id}}


def decode_follower(item: Item) -> StreamFollower:
    return StreamFollower(
        path=item[PK]["S"].removeprefix(FOLLOWERS),
        subscription_id=item[SUBSCRIPTION_ID]["S"],
        incarnation=item[SK]["S"].removeprefix(SLASH),
    )


def link_key(subscription_incarnation: str, path: str) -> Key:
    return make_key(LINKS + subscription_incarnation, SLASH + path)


def encode_link(link: StreamLink) -> Item:
    item = link_key(link.subscription_incarnation, link.path) | {
        ACKED: {"N": str(link.acked)},
        STREAM_INCARNATION: {"S": link.stream_incarnation},
    }
    return item | ({EXPLICIT: {"BOOL": True}} if link.explicit else {})


def decode_link(item: Item) -> StreamLink:
    return StreamLink(
        subscription_incarnation=item[PK]["S"].removeprefix(LINKS),
        path=item[SK]["S"].removeprefix(SLASH),
        explicit=EXPLICIT in item,
        acked=int(item[ACKED]["N"]),
        stream_incarnation=item[STREAM_INCARNATION]["S"],
    )


def mark_key(mark: PendingMark) -> Key:
    return make_key(MARKS + mark.subscription_incarnation, SLASH + mark.path)


def encode_mark(mark: PendingMark) -> Item:
    return mark_key(mark) | {
        STREAM_INCARNATION: {"S": mark.stream_incarnation},
        START: {"N": str(mark.start)},
    }


def decode_mark(item: Item) -> PendingMark:
    return PendingMark(
        subscription_incarnation=item[PK]["S"].removeprefix(MARKS),
        path=item[SK]["S"].removeprefix(SLASH),
        stream_incarnation=item[STREAM_INCARNATION]["S"],
        start=int(item[START]["N"]),
    )


def slow_slot_key(slot: int) -> Key:
    """The key of a slot for a call of a slow webhook. The item of a taken slot has WRITE_ID and UNTIL_MS."""
    return make_key("slow", f"/{slot}")


def signing_key_key(key: SigningKey) -> Key:
    return make_key(SIGNING_KEYS_PK, f"{render_offset(key.created_ms)}/{key.kid}")


def encode_signing_key(key: SigningKey) -> Item:
    return signing_key_key(key) | {PUBLIC_KEY: {"S": key.public}}


def decode_signing_key(item: Item) -> SigningKey:
    created_ms, _, kid = item[SK]["S"].partition("/")
    return SigningKey(kid, item[PUBLIC_KEY]["S"], int(created_ms))
