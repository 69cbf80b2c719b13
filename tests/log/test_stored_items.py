"""Items as earlier versions stored them stay readable, whatever a newer version writes.

An example is never changed or removed. If a newer version stores another form, it adds an example.
"""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from tidemark.log import records as logs
from tidemark.log import schema
from tidemark.log.combining import Mail, Mailed
from tidemark.log.pack_format import BlockEntry, PackIndex
from tidemark.protocol.append import Append
from tidemark.protocol.compaction import Compaction, Horizon
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.expiry import NEVER, Expiry, parse_expiry
from tidemark.protocol.messages import Messages, StoredBody, parse_content_type
from tidemark.protocol.producer import Claim, ProducerState
from tidemark.protocol.retention import Retention
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.subscriptions import records
from tidemark.subscriptions.configuration import SubscriptionConfiguration, SubscriptionKind
from tidemark.subscriptions.state import DeliveryState

JSON = parse_content_type("application/json")
TEXT = parse_content_type("text/plain; charset=utf-8")
ORDERS = StreamKey("v1", "orders/eu")
FIRST, SECOND = "Zk3v9QpLw2Xa_-01", "Zk3v9QpLw2Xa_-02"
AT = 1_767_225_600_000

# fmt: off
#: By version 0.1.0: how it is decoded, the item as it was stored, and the record that it is.
STORED: dict[str, tuple[Callable[[dict[str, Any]], object], str, Any]] = {
    "bucket": (schema.decode_bucket,
     """{"pk":{"S":"bucket/shop"},"sk":{"S":"."},"n":{"N":"3"},"cr":{"N":"1767225600000"},
     "i":{"S":"AAAAAAAAAAAAAAAA"}}""",
     logs.BucketRecord("shop", AT, "AAAAAAAAAAAAAAAA", 3)),
    "stream": (schema.decode_stream,
     """{"pk":{"S":"bucket/v1"},"sk":{"S":"stream/orders/eu"},"inc":{"S":"Zk3v9QpLw2Xa_-01"},
     "ct":{"S":"application/json"},"cr":{"N":"1767225600000"},"to":{"N":"1767225600000"}}""",
     logs.StreamRecord(ORDERS, FIRST, JSON, NEVER, AT, AT)),
    "stream that expires at an instant": (schema.decode_stream,
     """{"pk":{"S":"bucket/v1"},"sk":{"S":"stream/orders/eu"},"inc":{"S":"Zk3v9QpLw2Xa_-01"},
     "ct":{"S":"application/json"},"cr":{"N":"1767225600000"},"to":{"N":"1767225600000"},
     "xa":{"S":"2030-01-15T12:00:00Z"},"xm":{"N":"1894708800000"}}""",
     logs.StreamRecord(ORDERS, FIRST, JSON, parse_expiry(None, "2030-01-15T12:00:00Z"), AT, AT)),
    "deleted fork with a snapshot and forks of its own": (schema.decode_stream,
     r"""{"pk":{"S":"bucket/shop"},"sk":{"S":"stream/orders"},"inc":{"S":"Zk3v9QpLw2Xa_-02"},
     "ct":{"S":"text/plain; charset=utf-8"},"cr":{"N":"1767225600000"},"to":{"N":"1767225700000"},
     "tt":{"N":"3600"},"er":{"N":"5"},"so":{"N":"5"},"sb":{"S":"snap/Zk3v9QpLw2Xa_-02/x"},
     "sc":{"S":"application/json"},"sz":{"N":"17"},"sp":{"N":"1767225800000"},
     "ln":{"S":"[[\"v1\",\"orders/eu\",\"Zk3v9QpLw2Xa_-01\",9]]"},
     "fk":{"S":"[\"v1\",\"orders/eu\",9,0,\"Zk3v9QpLw2Xa_-01\",1]"},"rc":{"N":"2"},"dl":{"BOOL":true}}""",
     logs.StreamRecord(StreamKey("shop", "orders"), SECOND, TEXT, Expiry(ttl_seconds=3600), AT, AT + 100_000,
        lineage=(logs.Segment(ORDERS, FIRST, 9),), fork=logs.Fork(ForkPoint(ORDERS, 9, 0), FIRST, 1),
        references=2, deleted=True, retained=5,
        snapshot=logs.Snapshot(5, "snap/Zk3v9QpLw2Xa_-02/x", JSON, 17, AT + 200_000))),
    "batch": (schema.decode_entry,
     """{"pk":{"S":"log/v1/orders/eu#Zk3v9QpLw2Xa_-01"},"sk":{"S":"0000000000000000"},"e":{"N":"5"},
     "i":{"S":"app1"},"t":{"N":"1767225600000"},"b":{"B":"aGVsbG8="}}""",
     logs.Batch(0, Tail(5), "app1", AT, b"hello", lengths=(5,))),
    "batch with checksums, before any is known": (schema.decode_entry,
     """{"pk":{"S":"log/v1/orders/eu#Zk3v9QpLw2Xa_-01"},"sk":{"S":"0000000000000000"},"e":{"N":"5"},
     "i":{"S":"app1"},"t":{"N":"1767225600000"},"b":{"B":"aGVsbG8="},"h":{"B":"Od2gJg=="}}""",
     logs.Batch(0, Tail(5), "app1", AT, b"hello", lengths=(5,))),
    "batch with checksums, behind another": (schema.decode_entry,
     """{"pk":{"S":"log/v1/orders/eu#Zk3v9QpLw2Xa_-01"},"sk":{"S":"0000000000000005"},"e":{"N":"10"},
     "i":{"S":"app1"},"t":{"N":"1767225600000"},"b":{"B":"aGVsbG8="},"h":{"B":"Od2gJl9ehE0="}}""",
     logs.Batch(5, Tail(10), "app1", AT, b"hello", lengths=(5,))),
    "batch of two appends, deflated": (schema.decode_entry,
     """{"pk":{"S":"log/v1/orders/eu#Zk3v9QpLw2Xa_-01"},"sk":{"S":"0000000000000000"},"e":{"N":"3000"},
     "i":{"S":"app1"},"t":{"N":"1767225600000"},
     "z":{"B":"S0xKThxFoyEwGgKjITAaAqMhMBoCoyEwGgKjITAaAoM7BAA="},"m":{"B":"6AfQDw=="},"g":{"B":"AQE="}}""",
     logs.Batch(0, Tail(3000), "app1", AT, b"abc" * 1000, lengths=(1000, 2000), appends=(1, 1))),
    "closing batch in a blob, with producers": (schema.decode_entry,
     r"""{"pk":{"S":"log/v1/orders/eu#Zk3v9QpLw2Xa_-01"},"sk":{"S":"0000000000000005"},"e":{"N":"70005"},
     "i":{"S":"app2"},"t":{"N":"1767225600000"},"s":{"S":"log/Zk3v9QpLw2Xa_-01/0"},"c":{"BOOL":true},
     "q":{"S":"s7"},"p":{"S":"[[\"p\",1,2,70005]]"},"o":{"BOOL":true},"k":{"S":"[\"p\",1,2]"}}""",
     logs.Batch(5, Tail(70_005, True, "s7", (ProducerState("p", 1, 2, 70_005),), True, Claim("p", 1, 2)),
        "app2", AT, None, "log/Zk3v9QpLw2Xa_-01/0", lengths=(70_000,))),
    "tombstone of a closed stream": (schema.decode_entry,
     """{"pk":{"S":"log/v1/orders/eu#Zk3v9QpLw2Xa_-01"},"sk":{"S":"0000000000000005."},"e":{"N":"5"},
     "i":{"S":"app3"},"t":{"N":"1767225600000"},"x":{"BOOL":true},"c":{"BOOL":true}}""",
     logs.Tombstone(5, Tail(5, True), "app3", AT, behind_closing=True)),
    "producer": (schema.decode_producer,
     """{"pk":{"S":"producer/Zk3v9QpLw2Xa_-01"},"sk":{"S":"p"},"ep":{"N":"1"},"sq":{"N":"2"},
     "e":{"N":"70005"}}""",
     ProducerState("p", 1, 2, 70_005)),
    "due, with everything": (schema.decode_due,
     """{"pk":{"S":"due/7"},"sk":{"S":"0001767225600000/Zk3v9QpLw2Xa_-01/mark"},"kd":{"S":"trim"},
     "bk":{"S":"v1"},"st":{"S":"orders/eu"},"of":{"N":"5"},"s":{"S":"snap/x"}}""",
     logs.Due(logs.DueKind.TRIM, ORDERS, FIRST, AT, "mark", 5, "snap/x")),
    "due": (schema.decode_due,
     """{"pk":{"S":"due/7"},"sk":{"S":"0001767225600000/Zk3v9QpLw2Xa_-01"},"kd":{"S":"expire"},
     "bk":{"S":"v1"},"st":{"S":"orders/eu"}}""",
     logs.Due(logs.DueKind.EXPIRE, ORDERS, FIRST, AT)),
    "waiter": (schema.decode_waiter,
     """{"pk":{"S":"wait/23"},"sk":{"S":"Zk3v9QpLw2Xa_-01/https://sqs.us-east-1.amazonaws.com/1/q"},
     "u":{"N":"1767225600001"},"ttl":{"N":"1767225601"}}""",
     logs.Waiter(FIRST, "https://sqs.us-east-1.amazonaws.com/1/q", AT + 1)),
    "waiter, a connection": (schema.decode_waiter,
     """{"pk":{"S":"wait/23"},"sk":{"S":"Zk3v9QpLw2Xa_-01.L0SM9cOFvHcCIhw=/"},
     "u":{"N":"1767225600001"},"ttl":{"N":"1767225601"},"nm":{"S":"/orders/e%75"},"am":{"N":"1767225600000"}}""",
     logs.Waiter(FIRST, "L0SM9cOFvHcCIhw=", AT + 1, "/orders/e%75", AT)),
    "connection": (schema.decode_asked_for,
     r"""{"pk":{"S":"wait/44"},"sk":{"S":"+L0SM9cOFvHcCIhw="},"af":{"S":"{\"0f\":\"Zk3v9QpLw2Xa_-01\"}"},
     "rv":{"N":"7"},"ttl":{"N":"1767225601"}}""",
     ({"0f": FIRST}, 7)),
    "mail": (schema.decode_mail,
     """{"pk":{"S":"mail/Zk3v9QpLw2Xa_-01/0000000000000042"},"sk":{"S":"00112233aabbccdd"},"e":{"N":"5"},
     "po":{"N":"1767225600000"},"ttl":{"N":"1767229200"},"b":{"B":"WzEsMiw="},"m":{"B":"AwI="},
     "q":{"S":"7"},"cl":{"S":"[\\"p\\",1,2]"}}""",
     Mail("00112233aabbccdd", 42, AT, Append(Messages(b"[1,2,", (3, 2)), stream_seq="7",
        claim=Claim("p", 1, 2), incarnation=FIRST))),
    "mail of a producer that was looked up": (schema.decode_mail,
     """{"pk":{"S":"mail/Zk3v9QpLw2Xa_-01/0000000000000042"},"sk":{"S":"00112233aabbccdd"},"e":{"N":"2"},
     "po":{"N":"1767225600000"},"ttl":{"N":"1767229200"},"b":{"B":"WzE="},
     "cl":{"S":"[\\"p\\",1,2,[1,1,40]]"}}""",
     Mail("00112233aabbccdd", 42, AT, Append(Messages(b"[1", (2,)), claim=Claim("p", 1, 2),
        incarnation=FIRST), {"p": ProducerState("p", 1, 1, 40)})),
    "mail whose body is in S3": (schema.decode_mail,
     """{"pk":{"S":"mail/Zk3v9QpLw2Xa_-01/0000000000000042"},"sk":{"S":"00112233aabbccdd"},"e":{"N":"5"},
     "po":{"N":"1767225600000"},"ttl":{"N":"1767229200"},"s":{"S":"log/Zk3v9QpLw2Xa_-01/body"},
     "c":{"N":"7"},"m":{"B":"AwI="}}""",
     Mail("00112233aabbccdd", 42, AT,
        Append(Messages(b"", (3, 2), StoredBody("log/Zk3v9QpLw2Xa_-01/body", 7)), incarnation=FIRST))),
    "batch with many producers": (schema.decode_entry,
     """{"pk":{"S":"log/v1/orders/eu#Zk3v9QpLw2Xa_-01"},"sk":{"S":"0000000000000042"},"e":{"N":"43"},
     "i":{"S":"Zk3v9QpLw2Xa_-02"},"t":{"N":"1767225600000"},"b":{"B":"eA=="},"p":{"B":\""""
     "VdI7bsNQEEPRvbhWAJF8/q3FUJkirREg208xVHDT3ooHM6/X5ef99f35/tgv275p24/tL2mSkDzJSJkU"
     "pDVpIV0nXZFuk25I90l3pMekB9Jz0hNJna9/+08ABSpBNKgIUaEyRIcKESUqRbSoGFGjckSPChJFrsgU"
     "uSJT5PMoFLkiU+SKTJErMkWuyBS5IlPkikyRKzJFqSgUpaJQlIpCUc5HoygVhaJUFIpSUShKRaEoFYWi"
     "VBSKVkWLolXRomhVtHwcvw==" + """"}}""",
     logs.Batch(42, Tail(43, producers=tuple(ProducerState(f"writer-{n}", 0, 1, n) for n in range(43))),
        SECOND, AT, b"x", lengths=(1,))),
    "batch of mail, as its state is read": (schema.decode_entry,
     """{"pk":{"S":"log/v1/orders/eu#Zk3v9QpLw2Xa_-01"},"sk":{"S":"0000000000000042"},"e":{"N":"245"},
     "i":{"S":"Zk3v9QpLw2Xa_-02"},"t":{"N":"1767225600000"},"m":{"B":"yAED"},"g":{"B":"AQE="},
     "v":{"B":"ABEiM6q7zN3IAURVZnequ8zdAw=="},"q":{"S":"7"}}""",
     logs.Batch(42, Tail(245, stream_seq="7"), SECOND, AT, None, lengths=(200, 3), appends=(1, 1),
        mailed=(Mailed("00112233aabbccdd", 242), Mailed("44556677aabbccdd", 245)))),
    "receipt": (schema.decode_receipt,
     """{"pk":{"S":"mail/Zk3v9QpLw2Xa_-01/0000000000000042"},"sk":{"S":"."},"e":{"N":"245"},"q":{"S":"7"},
     "v":{"B":"ABEiM6q7zN3IAURVZnequ8zdAw=="},"i":{"S":"Zk3v9QpLw2Xa_-02"},"t":{"N":"1767225600000"},
     "ttl":{"N":"1767229200"}}""",
     logs.Batch(42, Tail(245, stream_seq="7"), SECOND, AT, None, lengths=(203,),
        mailed=(Mailed("00112233aabbccdd", 242), Mailed("44556677aabbccdd", 245)))),
    "webhook subscription whose call has failed": (records.decode_subscription,
     r"""{"pk":{"S":"sub/mailer"},"sk":{"S":"."},"inc":{"S":"Zk3v9QpLw2Xa_-01"},
     "cf":{"S":"[\"webhook\",\"orders/*\",[\"a\"],\"https://example.com/hook\",null,30000,\"mails\"]"},
     "ts":{"S":"secret"},"cr":{"N":"1767225600000"},
     "ws":{"S":"[7,\"w_1\",null,1767225630000,1767225602000,2,true]"},
     "ve":{"N":"12"},"wi":{"S":"write1"},"ac":{"BOOL":true}}""",
     records.SubscriptionRecord("mailer", FIRST, SubscriptionConfiguration(SubscriptionKind.WEBHOOK,
        "orders/*", ("a",), "https://example.com/hook", None, 30_000, "mails"), "secret", AT,
        DeliveryState(7, "w_1", None, AT + 30_000, AT + 2_000, 2, failed=True),
        active=True, version=12, write_id="write1")),
    "pull-wake subscription, not active yet": (records.decode_subscription,
     r"""{"pk":{"S":"sub/pool"},"sk":{"S":"."},"inc":{"S":"Zk3v9QpLw2Xa_-01"},
     "cf":{"S":"[\"pull-wake\",null,[\"a\",\"b\"],null,\"wake/pool\",1000,null]"},
     "ts":{"S":"secret"},"cr":{"N":"1767225600000"},"ws":{"S":"[0,null,null,null,null,0,false]"},
     "ve":{"N":"1"},"wi":{"S":"write1"}}""",
     records.SubscriptionRecord("pool", FIRST, SubscriptionConfiguration(SubscriptionKind.PULL_WAKE, None,
        ("a", "b"), None, "wake/pool", 1_000), "secret", AT, DeliveryState(),
        active=False, version=1, write_id="write1")),
    "subscription with a delivery": (records.decode_subscription,
     r"""{"pk":{"S":"sub/mailer"},"sk":{"S":"."},"inc":{"S":"Zk3v9QpLw2Xa_-01"},
     "cf":{"S":"[\"webhook\",\"orders/*\",[],\"https://example.com/hook\",null,30000,null]"},
     "ts":{"S":"secret"},"cr":{"N":"1767225600000"},
     "ws":{"S":"[7,null,null,null,null,0,false]"},"dv":{"N":"1767225605000"},
     "ve":{"N":"13"},"wi":{"S":"write1"},"ac":{"BOOL":true}}""",
     records.SubscriptionRecord("mailer", FIRST, SubscriptionConfiguration(SubscriptionKind.WEBHOOK,
        "orders/*", (), "https://example.com/hook", None, 30_000), "secret", AT,
        DeliveryState(7, delivered_ms=AT + 5_000), active=True, version=13, write_id="write1")),
    "webhook that is slow": (records.decode_subscription,
     r"""{"pk":{"S":"sub/mailer"},"sk":{"S":"."},"inc":{"S":"Zk3v9QpLw2Xa_-01"},
     "cf":{"S":"[\"webhook\",\"orders/*\",[],\"https://example.com/hook\",null,30000,null]"},
     "ts":{"S":"secret"},"cr":{"N":"1767225600000"},
     "ws":{"S":"[7,null,null,null,null,0,false,true]"},
     "ve":{"N":"13"},"wi":{"S":"write1"},"ac":{"BOOL":true}}""",
     records.SubscriptionRecord("mailer", FIRST, SubscriptionConfiguration(SubscriptionKind.WEBHOOK,
        "orders/*", (), "https://example.com/hook", None, 30_000), "secret", AT, DeliveryState(7, slow=True),
        active=True, version=13, write_id="write1")),
    "roster entry": (records.decode_roster_entry,
     """{"pk":{"S":"roster"},"sk":{"S":"/Zk3v9QpLw2Xa_-01"},"su":{"S":"pool"},"pt":{"S":"orders/*"},
     "wk":{"S":"wake/pool"},"hx":{"BOOL":true}}""",
     records.RosterEntry("pool", FIRST, "orders/*", "wake/pool", has_explicit=True)),
    "follower": (records.decode_follower,
     """{"pk":{"S":"follow/orders/eu"},"sk":{"S":"/Zk3v9QpLw2Xa_-01"},"su":{"S":"pool"}}""",
     records.StreamFollower("orders/eu", "pool", FIRST)),
    "link": (records.decode_link,
     """{"pk":{"S":"link/Zk3v9QpLw2Xa_-01"},"sk":{"S":"/orders/eu"},"ak":{"N":"42"},
     "si":{"S":"Zk3v9QpLw2Xa_-02"},"ex":{"BOOL":true}}""",
     records.StreamLink(FIRST, "orders/eu", explicit=True, acked=42, stream_incarnation=SECOND)),
    "pending mark": (records.decode_mark,
     """{"pk":{"S":"pending/Zk3v9QpLw2Xa_-01"},"sk":{"S":"/orders/eu"},"si":{"S":"Zk3v9QpLw2Xa_-02"},
     "sa":{"N":"42"}}""",
     records.PendingMark(FIRST, "orders/eu", SECOND, 42)),
    "signing key": (records.decode_signing_key,
     """{"pk":{"S":"keys"},"sk":{"S":"0001767225600000/ds_abc"},"pu":{"S":"x"}}""",
     records.SigningKey("ds_abc", "x", AT)),
    "token": (schema.decode_token,
     """{"pk":{"S":"revoked"},"sk":{"S":"/0f1e"},"ttl":{"N":"1767225660"},"sj":{"S":"ci/build"},
     "sc":{"S":"read:v1"}}""",
     schema.IssuedToken("0f1e", "ci/build", "read:v1", AT)),
    "pack": (schema.decode_entry,
     """{"pk":{"S":"log/v1/orders/eu#Zk3v9QpLw2Xa_-01"},"sk":{"S":"0000000000000042"},"e":{"N":"53"},
     "i":{"S":"Zk3v9QpLw2Xa_-02"},"t":{"N":"1767225600123"},"s":{"S":"log/Zk3v9QpLw2Xa_-01/p"},
     "px":{"B":"ASoAAAAAAAAACwAAACkAAABxa6um"}}""",
     logs.Pack(42, Tail(53), SECOND, 1_767_225_600_123, "log/Zk3v9QpLw2Xa_-01/p",
        PackIndex((BlockEntry(42, 53, 11, 16, 41, 2796252017),)))),
    "compacted pack": (schema.decode_entry,
     """{"pk":{"S":"log/v1/orders/eu#Zk3v9QpLw2Xa_-01"},"sk":{"S":"0000000000000042"},
     "e":{"N":"5000000069"},"i":{"S":"Zk3v9QpLw2Xa_-02"},"t":{"N":"1767225600123"},
     "s":{"S":"log/Zk3v9QpLw2Xa_-01/p"},"px":{"B":"AioAAAAAAAAAG/IFKgEAAAALAAAAMQAAAJZUN6E="},
     "pc":{"N":"6000000000"}}""",
     logs.Pack(42, Tail(5_000_000_069), SECOND, 1_767_225_600_123, "log/Zk3v9QpLw2Xa_-01/p",
        PackIndex((BlockEntry(42, 5_000_000_069, 11, 16, 49, 2704757910),)), compacted=6_000_000_000)),
    "stream that is compacted": (schema.decode_stream,
     """{"pk":{"S":"bucket/v1"},"sk":{"S":"stream/orders/eu"},"inc":{"S":"Zk3v9QpLw2Xa_-01"},
     "ct":{"S":"application/json"},"cr":{"N":"1767225600000"},"to":{"N":"1767225600000"},"pd":{"N":"53"},
     "cp":{"S":"[3600,86400,\\"/id\\"]"},"cd":{"N":"53"},"ho":{"S":"[42,53,1767225600000]"}}""",
     logs.StreamRecord(ORDERS, FIRST, JSON, NEVER, AT, AT, packed=53,
        compaction=Compaction(3600, 86_400, "/id"), compacted=53, horizon=Horizon(42, 53, AT))),
    "bucket whose streams are compacted": (schema.decode_bucket,
     """{"pk":{"S":"bucket/shop"},"sk":{"S":"."},"n":{"N":"3"},"cr":{"N":"1767225600000"},
     "ch":{"N":"0"},"i":{"S":"AAAAAAAAAAAAAAAA"},"cp":{"S":"[3600,86400,null]"}}""",
     logs.BucketRecord("shop", AT, "AAAAAAAAAAAAAAAA", 3, compaction=Compaction())),
    "stream that is packed": (schema.decode_stream,
     """{"pk":{"S":"bucket/v1"},"sk":{"S":"stream/orders/eu"},"inc":{"S":"Zk3v9QpLw2Xa_-01"},
     "ct":{"S":"application/json"},"cr":{"N":"1767225600000"},"to":{"N":"1767225600000"},"pd":{"N":"53"}}""",
     logs.StreamRecord(ORDERS, FIRST, JSON, NEVER, AT, AT, packed=53)),
    "due: pack": (schema.decode_due,
     """{"pk":{"S":"due/p3"},"sk":{"S":"0001767225600000/Zk3v9QpLw2Xa_-01/262150"},"kd":{"S":"pack"},
     "bk":{"S":"v1"},"st":{"S":"orders/eu"},"of":{"N":"262150"}}""",
     logs.Due(logs.DueKind.PACK, ORDERS, FIRST, AT, "262150", 262150)),
    "due: remove what a pack has replaced": (schema.decode_due,
     """{"pk":{"S":"due/p3"},"sk":{"S":"0001767225600000/Zk3v9QpLw2Xa_-01/0000000000000042"},
     "kd":{"S":"packed"},"bk":{"S":"v1"},"st":{"S":"orders/eu"},"of":{"N":"53"}}""",
     logs.Due(logs.DueKind.PACKED, ORDERS, FIRST, AT, "0000000000000042", 53)),
    "stream that keeps messages for a day and its last megabyte": (schema.decode_stream,
     """{"pk":{"S":"bucket/v1"},"sk":{"S":"stream/orders/eu"},"inc":{"S":"Zk3v9QpLw2Xa_-01"},
     "ct":{"S":"application/json"},"cr":{"N":"1767225600000"},"to":{"N":"1767225600000"},
     "rs":{"N":"86400"},"rb":{"N":"1000000"},"er":{"N":"53"}}""",
     logs.StreamRecord(ORDERS, FIRST, JSON, NEVER, AT, AT, retained=53,
        retention=Retention(86_400, 1_000_000))),
    "bucket whose streams keep messages for a day and their last megabyte": (schema.decode_bucket,
     """{"pk":{"S":"bucket/shop"},"sk":{"S":"."},"n":{"N":"3"},"cr":{"N":"1767225600000"},
     "ch":{"N":"0"},"i":{"S":"AAAAAAAAAAAAAAAA"},"rs":{"N":"86400"},"rb":{"N":"1000000"}}""",
     logs.BucketRecord("shop", AT, "AAAAAAAAAAAAAAAA", 3, retention=Retention(86_400, 1_000_000))),
    "due: look at what a stream retains": (schema.decode_due,
     """{"pk":{"S":"due/3"},"sk":{"S":"0001767225600000/Zk3v9QpLw2Xa_-01/retain"},
     "kd":{"S":"retain"},"bk":{"S":"v1"},"st":{"S":"orders/eu"}}""",
     logs.Due(logs.DueKind.RETAIN, ORDERS, FIRST, AT, "retain")),
    "due: trim what a stream let go of": (schema.decode_due,
     """{"pk":{"S":"due/3"},"sk":{"S":"0001767225600000/Zk3v9QpLw2Xa_-01/to-0000000000000053"},
     "kd":{"S":"trim"},"bk":{"S":"v1"},"st":{"S":"orders/eu"},"of":{"N":"53"}}""",
     logs.Due(logs.DueKind.TRIM, ORDERS, FIRST, AT, "to-0000000000000053", 53)),
    "end mark": (schema.decode_end_mark,
     """{"pk":{"S":"bucket/v1"},"sk":{"S":"stream/orders/eu"},"em":{"N":"1767225600000"},
     "ei":{"S":"Zk3v9QpLw2Xa_-01"},"ttl":{"N":"1767312000"}}""",
     logs.EndMark(AT, FIRST)),
    "end mark of an expired stream": (schema.decode_end_mark,
     """{"pk":{"S":"bucket/v1"},"sk":{"S":"stream/orders/eu"},"em":{"N":"1767225600000"},
     "ei":{"S":"Zk3v9QpLw2Xa_-01"},"ttl":{"N":"1767312000"},"ex":{"BOOL":true}}""",
     logs.EndMark(AT, FIRST, expired=True)),
    "due: remove what a pack has replaced that has taken in others": (schema.decode_due,
     """{"pk":{"S":"due/p3"},"sk":{"S":"0001767225600000/Zk3v9QpLw2Xa_-01/0000000000000042-pack000000000002"},
     "kd":{"S":"packed"},"bk":{"S":"v1"},"st":{"S":"orders/eu"},"of":{"N":"97"},
     "s":{"S":"log/Zk3v9QpLw2Xa_-01/pack000000000001"}}""",
     logs.Due(logs.DueKind.PACKED, ORDERS, FIRST, AT, "0000000000000042-pack000000000002", 97,
        "log/Zk3v9QpLw2Xa_-01/pack000000000001")),
    "due: remove the object of a pack that was taken in": (schema.decode_due,
     """{"pk":{"S":"due/p3"},"sk":{"S":"0001767225600000/Zk3v9QpLw2Xa_-01/0000000000000042-pack000000000001"},
     "kd":{"S":"replaced"},"bk":{"S":"v1"},"st":{"S":"orders/eu"},
     "s":{"S":"log/Zk3v9QpLw2Xa_-01/pack000000000001"}}""",
     logs.Due(logs.DueKind.REPLACED, ORDERS, FIRST, AT, "0000000000000042-pack000000000001",
        blob="log/Zk3v9QpLw2Xa_-01/pack000000000001")),
    "format": (schema.decode_format, """{"pk":{"S":"format"},"sk":{"S":"."},"fe":{"N":"1"}}""", 1),
}
# fmt: on


@pytest.mark.parametrize(("decode", "text", "record"), STORED.values(), ids=STORED)
def test_an_item_of_an_earlier_version_stays_readable(
    decode: Callable[[dict[str, Any]], object], text: str, record: object
) -> None:
    assert decode(orjson.loads(text)) == record


@pytest.mark.parametrize(
    "name", ["mail", "mail of a producer that was looked up", "mail whose body is in S3"]
)
def test_mail_of_another_form_lies_under_another_key(name: str) -> None:
    """A release commits only mail of its own format, so it misreads none during a deployment. If this fails,
    `encode_mail` has changed: increment MAIL_FORMAT, and expect here what is written from now on."""
    _, text, mail = STORED[name]
    written = orjson.loads(text) | {"pk": {"S": "mail/2/Zk3v9QpLw2Xa_-01/0000000000000042"}}
    assert schema.encode_mail(FIRST, mail) == written
    assert schema.decode_mail(written) == mail
