"""What `make build` made, by itself: `make test ARGS="-m artifact"` after `make build`.

Every handler is imported and invoked out of `.aws-sam/build` alone, and what it asks of AWS
meanwhile is held against what the template grants it.
"""

import base64
import copy
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from benchmarks.layer import BUILD, LAYER, link_natives
from tests.artifact.iam import actions
from tests.artifact.moto_iam import SUBSCRIPTIONS, WEBHOOK_KEYS, Roles, make_roles
from tests.artifact.test_roles import expanded
from tests.http_server import Handler, serving
from tests.infra.test_template import FUNCTIONS, ROOT, statements_of
from tests.stack.emulators import Ministack
from tests.stack.engines import LocalServices
from tests.stack.websocket_api import Connections, ManagementServer
from tests.support import World, a_key
from tidemark.aws.sqs import Queues, sqs_client
from tidemark.log.records import Waiter
from tidemark.log.schema import log_pk, stream_key
from tidemark.log.waiters import put_waiter
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import load_head
from tidemark.subscriptions.notices import Changed, encode_notice

pytestmark = [pytest.mark.artifact, pytest.mark.usefixtures("built")]

PROBE = Path(__file__).with_name("probe.py")
EVENTS = ROOT / "events"
#: Of a stream that is written by one function, and read by two others hours later by their clocks: a read
#: renews it once a twentieth of it has passed.
LIFETIME_SECONDS = 3 * 24 * 3600
REGISTRY = "/v1/stream/__registry__"
#: Granted, and yet not called in a run in which nothing goes wrong.
ONLY_WHEN = {
    ("WriteFunction", "s3:AbortMultipartUpload"): "a composed snapshot could not be finished",
    ("ReadFunction", "ssm:GetParameter"): "secrets are named; see test_secrets_are_read_by_name",
    ("WriteFunction", "ssm:GetParameter"): "as for reading",
    ("LiveFunction", "ssm:GetParameter"): "as for reading",
    ("SocketFunction", "ssm:GetParameter"): "as for reading",
    ("ProxyFunction", "ssm:GetParameter"): "as for reading",
    ("ProxyFunction", "s3:DeleteObject"): "Lambda did not take the call",
    ("ProxyFunction", "s3:GetObject"): "an answer has a large piece",
    ("PipeFunction", "s3:PutObject"): "the same",
    ("PipeFunction", "ssm:GetParameter"): "keys of upstreams are named",
    ("NotifierFunction", "dynamodb:UpdateItem"): "two tell a registry the same, and its lifetime is renewed",
    ("SubscriptionsFunction", "dynamodb:UpdateItem"): "a wake event comes twice, and its stream is renewed",
}

#: The function behind WriterUrl has the code and the rights of `write` (`tests/infra/test_deployment.py`).
JUDGED = [name for name in FUNCTIONS if name != "WriterFunction"]

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def natives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the layer that are compiled, as they are installed for this machine."""
    directory = tmp_path_factory.mktemp("natives")
    link_natives(directory)
    return directory


@pytest.fixture(scope="module")
def parameter_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an SSM that is empty at first."""
    engine = Ministack(["ssm"], None, tmp_path_factory.mktemp("ssm") / "log")
    engine.start()
    engine.wait_until_ready()
    yield engine.endpoint
    engine.child.stop()


@pytest.fixture(scope="module")
def queue(services: LocalServices) -> str:
    """The URL of the queue that the subscriptions function works off."""
    return services.create_queue(SUBSCRIPTIONS)


@pytest.fixture(scope="module")
def run(services: LocalServices, world: World, natives: Path, parameter_store: str, queue: str) -> Run:
    """Runs a function's steps in a process of its own."""

    def run(name: str, *steps: Any, hours_ahead: int = 0, **variables: str) -> dict[str, Any]:
        environment = {
            **services.environment,
            "TABLE_NAME": world.table_name,
            "BUCKET_NAME": world.bucket_name,
            "ALLOW_ANONYMOUS": "true",
            # Long enough for a reader to register and to ask its queue, however busy this machine is.
            "LONG_POLL_SECONDS": "15",
            "SSE_SECONDS": "2",
            "SUBSCRIPTIONS_QUEUE_URL": queue,
            "WEBHOOK_KEYS": f"ssm:{WEBHOOK_KEYS}",
            "AWS_ENDPOINT_URL_SSM": parameter_store,
            "PATH": os.environ["PATH"],
            "POWERTOOLS_METRICS_NAMESPACE": "Tidemark",
        } | variables
        task = {
            "function": str(BUILD / name),
            "natives": str(natives),
            "layer": str(LAYER),
            "steps": steps,
            "hours_ahead": hours_ahead,
        }
        ran = subprocess.run(
            [sys.executable, "-I", "-S", "-B", str(PROBE)],
            check=False,
            input=json.dumps(task),
            env=environment,
            cwd=BUILD / name,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ran.returncode == 0, ran.stderr
        report: dict[str, Any] = json.loads(ran.stdout.rpartition("REPORT")[2])
        calls.setdefault(name, set()).update(report["called"])
        requests.setdefault(name, set()).update((*each[:2], *each[2]) for each in report["asked"])
        check_alone(report["origins"], natives)
        return report

    return run


#: By function, over the whole module: what a run of it has asked of AWS.
calls: dict[str, set[str]] = {}
#: The same with what each call was about: the call, the resource, and the partition keys in it.
requests: dict[str, set[tuple[str, ...]]] = {}


def check_alone(origins: dict[str, str], natives: Path) -> None:
    """Nothing came from the project, nor from what is installed beside it."""
    standard = Path(sysconfig.get_path("stdlib"))
    for name, origin in origins.items():
        path = Path(origin)
        if path.is_relative_to(BUILD) or path.is_relative_to(natives) or path == PROBE:
            continue
        assert path.is_relative_to(standard), (name, origin)
        assert "site-packages" not in path.parts, (name, origin)


def event(name: str, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text())
    return made | changes


def request(method: str, path: str, query: str = "", body: bytes = b"", **headers: str) -> dict[str, Any]:
    made = copy.deepcopy(event("get-catch-up"))
    made |= {"rawPath": path, "rawQueryString": query}
    made["headers"] |= {name.replace("_", "-"): value for name, value in headers.items()}
    made["requestContext"]["http"] |= {"method": method, "path": path}
    if body:
        made |= {"body": base64.b64encode(body).decode(), "isBase64Encoded": True}
    return made


def statuses(report: dict[str, Any]) -> list[int]:
    return [answer["statusCode"] for answer in report["answers"]]


def put(path: str, body: bytes = b"", **headers: str) -> dict[str, Any]:
    return request("PUT", path, body=body, **{"content_type": "application/octet-stream"} | headers)


def post(path: str, body: bytes = b"", **headers: str) -> dict[str, Any]:
    return request("POST", path, body=body, **{"content_type": "application/octet-stream"} | headers)


@pytest.mark.parametrize(
    "name", [name for name in FUNCTIONS if name not in {"LiveFunction", "NotifierFunction"}]
)
def test_every_sample_event_is_answered(run: Run, name: str) -> None:
    """By the function that the template sends it to; whatever the order, none makes it fail."""
    if name in {"JanitorFunction", "PackerFunction"}:
        report = run(name, event("janitor-schedule"))
        assert set(report["answers"][0].values()) == {0}
        return
    if name == "SubscriptionsFunction":
        assert run(name, event("subscription-messages"))["answers"] == [{"batchItemFailures": []}]
        return
    writes = {"PUT", "POST", "DELETE"}
    samples = [json.loads(path.read_text()) for path in sorted(EVENTS.glob("*.json"))]
    mine = [
        sample
        for sample in samples
        if "requestContext" in sample
        and ("connectionId" in sample["requestContext"]) == (name == "SocketFunction")
        and (sample["requestContext"].get("http", {}).get("method") in writes) == (name == "WriteFunction")
    ]
    assert mine
    assert all(status < 500 for status in statuses(run(name, *mine)))


LARGE = b"x" * 70_000
SECRET_NAME = "/tidemark/secret"
ZERO = "0" * 16
#: A server on this machine alone may have webhooks there too.
LOCAL_URL = "http://127.0.0.1:1"
SUBSCRIBED = "/v1/stream/__ds/subscriptions"
#: Not over before the next test, however busy this machine is.
LEASE_MS = 600_000


@pytest.fixture(scope="module")
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The URL of a receiver, and what it got. At `/done` it is done with a wake at once, elsewhere never."""
    got: list[dict[str, Any]] = []

    class Receive(Handler):
        def answer(self) -> None:
            got.append(json.loads(self.received()) | {"signature": self.headers["Webhook-Signature"]})
            self.respond(200, json.dumps({"done": self.path == "/done"}).encode())

    with serving(Receive) as url:
        yield url, got


def subscribe(name: str, **asked: Any) -> dict[str, Any]:
    return put(f"{SUBSCRIBED}/{name}", json.dumps(asked).encode(), content_type="application/json")


def take(name: str, **asked: Any) -> dict[str, Any]:
    asked["worker"] = "w"
    return post(f"{SUBSCRIBED}/{name}/take", json.dumps(asked).encode(), content_type="application/json")


def webhook_at(url: str) -> dict[str, Any]:
    return {"type": "webhook", "webhook": {"url": url}}


def test_the_write_function(run: Run, webhook: tuple[str, list[dict[str, Any]]]) -> None:
    hooks, _ = webhook
    producer = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
    tail = f"{len(LARGE) + 5:016d}"
    steps = [
        (put("/v1/stream/w"), 201),
        (post("/v1/stream/w", b"12345"), 204),
        (post("/v1/stream/w", LARGE, **producer), 200),
        (post("/v1/stream/w", LARGE, **producer), 204),
        (put("/v1/stream/large", LARGE), 201),
        (put("/v1/stream/large", LARGE), 200),
        (put("/v1/stream/large", LARGE, content_type="text/plain"), 409),
        (put("/v1/stream/fork", stream_forked_from="/v1/stream/w"), 201),
        (request("DELETE", "/v1/stream/w"), 204),
        (request("DELETE", "/v1/stream/fork"), 204),
        (request("PUT", "/agents"), 201),
        (put("/agents/run", b"12345"), 201),
        (post("/agents/run", LARGE), 204),
        (put("/agents/run/snapshot/" + f"{5:016d}", b"small"), 204),
        (put("/agents/run/snapshot/" + tail, LARGE), 204),
        (request("DELETE", "/agents/run/snapshot/" + f"{5:016d}"), 404),
        (post(f"/agents/run/snapshot/{tail}/upload"), 201),
        (put("/v1/stream/short-fork", stream_forked_from="/v1/stream/large", stream_ttl="0"), 201),
        (put("/v1/stream/short-lived", LARGE, stream_ttl="0"), 201),
        (put("/v1/stream/short-lived", LARGE, stream_ttl="0"), 201),
        (put("/v1/stream/lives", b"x", stream_ttl=str(LIFETIME_SECONDS)), 201),
        (put("/v1/stream/awaited", b"x"), 201),
        (put(REGISTRY, content_type="application/json", stream_ttl=str(LIFETIME_SECONDS)), 201),
        (put("/v1/stream/packed", b"1"), 201),
        (post("/v1/stream/packed", b"2"), 204),
        (post("/v1/stream/packed", b"3"), 204),
        (put("/v1/stream/watched/a"), 201),
        (put("/v1/stream/wakes", content_type="application/json"), 201),
        (subscribe("done", streams=["watched/a"], lease_ttl_ms=LEASE_MS, **webhook_at(f"{hooks}/done")), 201),
        (subscribe("works", pattern="watched/*", lease_ttl_ms=LEASE_MS, **webhook_at(f"{hooks}/works")), 201),
        (subscribe("pool", type="pull-wake", pattern="watched/*", wake_stream="wakes"), 201),
        (post("/v1/stream/watched/a", b"12345"), 204),
        (subscribe("late", type="pull-wake", streams=["watched/a"], wake_stream="wakes"), 201),
        (post(f"{SUBSCRIBED}/late/claim", b'{"worker": "w"}', content_type="application/json"), 409),
        (subscribe("shared", type="shared", streams=["watched/a"]), 201),
        (take("shared", wait_seconds=5), 200),
    ]
    report = run("WriteFunction", *(step for step, _ in steps), PUBLIC_URL=LOCAL_URL, PACK_AFTER_SECONDS="0")
    assert statuses(report) == [status for _, status in steps]
    upload = next(json.loads(body(each)) for each in report["answers"] if b"publish_before_ms" in body(each))
    sent = urllib.request.Request(upload["url"], b"y" * 100, upload["headers"], method="PUT")
    with urllib.request.urlopen(sent) as answer:
        assert answer.status == 200
    publish = put(f"/agents/run/snapshot/{tail}", snapshot_upload=upload["upload"])
    assert statuses(run("WriteFunction", publish)) == [204]


def body(answer: dict[str, Any]) -> bytes:
    return base64.b64decode(answer["body"]) if answer["isBase64Encoded"] else answer["body"].encode()


def test_the_read_function(run: Run) -> None:
    """Runs after the one that writes, and late enough for a read to renew the stream's lifetime."""
    steps = [
        (request("GET", "/v1/health"), 200),
        (request("GET", "/v1/openapi.json"), 200),
        (request("GET", "/v1/stream/large", "offset=-1"), 200),
        (request("HEAD", "/v1/stream/large"), 200),
        (request("GET", "/v1/stream/lives", "offset=-1"), 200),
        (request("GET", "/v1/stream/awaited", f"offset={1:016d}&live=long-poll"), 204),
        (request("GET", "/v1/stream/awaited", "offset=-1&live=sse"), 200),
        (request("GET", "/agents"), 200),
        (request("GET", "/agents/streams"), 200),
        (request("GET", "/agents/run/snapshot"), 307),
        (request("GET", "/agents/run/bootstrap"), 200),
        (request("GET", f"{SUBSCRIBED}/done"), 200),
        (request("GET", "/v1/stream/__ds/jwks.json"), 200),
        (request("GET", "/v1/stream/never"), 404),
        (request("PATCH", "/v1/stream/large"), 405),
    ]
    report = run("ReadFunction", *(step for step, _ in steps), hours_ahead=4)
    assert statuses(report) == [status for _, status in steps]


def test_the_live_function(run: Run) -> None:
    steps = [
        {"target": "/v1/health"},
        {"target": "/v1/stream/awaited?offset=-1&live=sse"},
        {"target": "/v1/stream/large?offset=-1&live=sse"},
        {"target": "/v1/stream/lives?offset=-1&live=sse"},
    ]
    report = run("LiveFunction", *steps, hours_ahead=8)
    assert statuses(report) == [200] * 4
    assert "event: control" in report["answers"][1]["body"]


def test_the_socket_function(run: Run) -> None:
    """A stream with a time to live is renewed hours later; so is a watch, until it is ended."""
    name = "/v1/stream/lives"
    watch = [event("socket-message", body=json.dumps({"watch": [name]}))] * 2
    for answer in run("SocketFunction", *watch, hours_ahead=12)["answers"]:
        assert json.loads(answer["body"])["seconds"] == 3600
    unwatch = event("socket-message", body=json.dumps({"unwatch": [name]}))
    unwatch["requestContext"]["requestTimeEpoch"] += 1
    assert run("SocketFunction", unwatch, hours_ahead=12)["answers"] == [{"statusCode": 200, "body": "[]"}]


def test_the_notifier_function(run: Run, world: World) -> None:
    """One reader's queue is there, left by the one that read; another's is gone. A third stream has
    subscribers, a fourth is watched by sockets, of which one is gone. The registry, which somebody has made,
    is told of the streams."""
    process, key = world.process(), a_key()

    awaited = load_head(process.stores, StreamKey("v1", "awaited")).record
    now_ms = int(time.time() * 1000)
    gone = f"http://127.0.0.1:1/123456789012/tidemark-wake-gone-{now_ms}"
    other = process.create(key).head.record
    put_waiter(process.stores.table, Waiter(other.incarnation, gone_beside(process, gone), now_ms + 60_000))
    watched = load_head(process.stores, StreamKey("v1", "watched/a")).record
    told = process.create(StreamKey("agents", "told"), body=b"one").head.record
    for connection in ("open", "left"):
        waiter = Waiter(told.incarnation, connection, now_ms + 60_000, "/agents/told", now_ms)
        put_waiter(process.stores.table, waiter)
    records = [record(log_pk(each.key, each.incarnation)) for each in (awaited, other, watched, told)]
    items = [stream_key(StreamKey("v1", name)) for name in ("__registry__", "awaited")]
    records += [record(item["pk"]["S"], item["sk"]["S"]) for item in items]
    posted = list[dict[str, str]]()

    def deliver(message: dict[str, str]) -> Future[None]:
        posted.append(message)
        sent = Future[None]()
        sent.set_result(None)
        return sent

    with ManagementServer(Connections()) as sockets:
        sockets.connections._senders["open"] = deliver
        endpoint = sockets.environment["SOCKET_ENDPOINT"] + "/stage"
        report = run("NotifierFunction", {"Records": records}, SOCKET_ENDPOINT=endpoint)
    assert report["answers"] == [{"batchItemFailures": []}]
    assert [json.loads(each["text"])["offset"] for each in posted] == [f"{3:016}"]
    assert run("NotifierFunction", event("stream-records"))["answers"] == [{"batchItemFailures": []}]
    registry = run("ReadFunction", request("GET", REGISTRY, "offset=-1"))["answers"][0]
    assert "awaited" in body(registry).decode()


def gone_beside(process: Any, fallback: str) -> str:
    """The URL of a queue that is not there, at the SQS that is."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_SQS") or os.environ.get("AWS_ENDPOINT_URL")
    return f"{endpoint}/000000000000/tidemark-wake-0-gone" if endpoint else fallback


def record(pk: str, sk: str = ZERO) -> dict[str, Any]:
    keys = {"pk": {"S": pk}, "sk": {"S": sk}}
    return {
        "eventID": "1",
        "eventName": "INSERT",
        "eventSource": "aws:dynamodb",
        "dynamodb": {"Keys": keys, "SequenceNumber": "1", "StreamViewType": "KEYS_ONLY"},
    }


def test_the_subscriptions_function(run: Run, queue: str, webhook: tuple[str, list[dict[str, Any]]]) -> None:
    """What the notifier has sent about one append: two webhooks are called, and a wake event is written."""
    queues, sent = Queues(sqs_client, ""), list[str]()
    while len(sent) < 3:
        more = queues.receive(queue, 20)
        assert more, f"of three messages, these came: {sent}"
        sent += more
    _, got = webhook
    for hours in range(3):  # A busy machine does not answer within the second that a first call has.
        report = run("SubscriptionsFunction", messages(sent), hours_ahead=hours, PUBLIC_URL=LOCAL_URL)
        assert report["answers"] == [{"batchItemFailures": []}]
        if {each["subscription_id"] for each in got} == {"done", "works"}:
            break
    assert {each["subscription_id"] for each in got} == {"done", "works"}
    assert all(re.fullmatch(r"t=\d+,kid=ds_\S+,ed25519=\S+", each["signature"]) for each in got)
    wakes = run("ReadFunction", request("GET", "/v1/stream/wakes", "offset=-1"))
    assert [each["subscription_id"] for each in json.loads(body(wakes["answers"][0]))] == ["pool"]
    # One is told that its lease has begun: a timer is set for its end. Another has ended: what it had goes.
    assert statuses(run("WriteFunction", request("DELETE", f"{SUBSCRIBED}/done"))) == [204]
    later = [encode_notice(Changed(name)) for name in ("works", "done")]
    report = run("SubscriptionsFunction", messages(later), PUBLIC_URL=LOCAL_URL)
    assert report["answers"] == [{"batchItemFailures": []}]


def messages(bodies: list[str]) -> dict[str, Any]:
    [template, *_] = event("subscription-messages")["Records"]
    return {"Records": [template | {"messageId": str(n), "body": text} for n, text in enumerate(bodies)]}


def test_the_janitor_function(run: Run) -> None:
    """A day later: what was deleted, what has expired, the queues that readers left, and a webhook whose
    lease is over."""
    rounds = [event("janitor-schedule"), event("janitor-schedule")]
    report = run("JanitorFunction", *rounds, hours_ahead=24, PACK_AFTER_SECONDS="0")
    assert report["answers"][0]["packed"] == 0
    assert report["answers"][0]["reminded"] >= 1
    assert report["answers"][0]["reclaimed"] + report["answers"][1]["reclaimed"] >= 2
    assert report["answers"][0]["expired"] >= 1
    again = run("JanitorFunction", event("janitor-schedule"), hours_ahead=48, PACK_AFTER_SECONDS="0")
    assert again["answers"]


def test_the_packer_function(run: Run) -> None:
    """Batches that are old become a pack, which the next one takes in; later its object is removed."""
    first = run("PackerFunction", event("janitor-schedule"), hours_ahead=24, PACK_AFTER_SECONDS="0")
    assert first["answers"][0]["packed"] >= 1
    packed = run("ReadFunction", request("GET", "/v1/stream/packed", "offset=-1"))
    assert body(packed["answers"][0]) == b"123"
    assert "s3:GetRange" in packed["called"]
    more = [post("/v1/stream/packed", digit) for digit in (b"4", b"5", b"6")]
    run("WriteFunction", *more, PACK_AFTER_SECONDS="0")
    second = run("PackerFunction", event("janitor-schedule"), hours_ahead=25, PACK_AFTER_SECONDS="0")
    assert second["answers"][0]["packed"] >= 1
    assert "s3:GetRange" in second["called"]
    third = run("PackerFunction", event("janitor-schedule"), hours_ahead=27, PACK_AFTER_SECONDS="0")
    assert third["answers"][0]["replaced"] >= 1
    packed = run("ReadFunction", request("GET", "/v1/stream/packed", "offset=-1"))
    assert body(packed["answers"][0]) == b"123456"


def test_the_proxy_function(run: Run, webhook: tuple[str, list[dict[str, Any]]]) -> None:
    """A request begins an invocation, whose body lies in S3; that calls the upstream, once though it is
    delivered twice; then the request, which is repeated, has its answer."""
    hooks, got = webhook
    more = {"PROXY_ALLOW": f"{hooks}/*", "AWS_ENDPOINT_URL_LAMBDA": hooks, "LONG_POLL_SECONDS": "1"}
    upstream = {"upstream_url": f"{hooks}/done", "upstream_method": "POST", "idempotency_key": "k"}
    ask = post("/v1/proxy", json.dumps({"large": "x" * 700_000}).encode(), **upstream)
    assert statuses(run("ProxyFunction", ask, **more)) == [504]
    [order] = [each["order"] for each in got if "order" in each]
    run("PipeFunction", {"order": order}, {"order": order}, **more)
    [answer] = run("ProxyFunction", ask, **more)["answers"]
    assert (answer["statusCode"], sum("large" in each for each in got)) == (201, 1)
    path, _, query = answer["headers"]["location"].partition("/v1/proxy/")[2].partition("?")
    signed = [request(method, f"/v1/proxy/{path}", f"{query}&action=abort") for method in ("GET", "PATCH")]
    steps = [*signed, request("DELETE", f"/v1/proxy/{path}")]
    assert statuses(run("ProxyFunction", *steps, **more)) == [200, 204, 204]


@pytest.mark.parametrize("name", JUDGED)
def test_what_a_function_asks_of_aws_is_granted_and_nothing_else(name: str) -> None:
    """Runs after those above, and judges what they recorded."""
    assert name in calls, "run the whole module: this is what it recorded"
    granted = {
        action for statement in statements_of(FUNCTIONS[name]) for action in listed(statement["Action"])
    }
    needed = actions(calls[name])
    assert needed <= granted, "asked for, and refused once deployed"
    idle = {action for action in granted - needed if (name, action) not in ONLY_WHEN}
    assert idle == set(), "granted, and never asked for"


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def test_secrets_are_read_by_name(run: Run) -> None:
    """Without the parameter store nobody gets in: it is asked, and does not answer."""
    variables = {
        "ALLOW_ANONYMOUS": "",
        "AUTH_SECRET_NAME": SECRET_NAME,
        "AWS_ENDPOINT_URL_SSM": "http://127.0.0.1:1",
        "AWS_MAX_ATTEMPTS": "1",
    }
    token = base64.urlsafe_b64encode(b'{"alg":"HS256"}').decode().rstrip("=") + ".e30.AAAA"
    for name in ("ReadFunction", "WriteFunction"):
        before = calls.get(name, set()).copy()
        report = run(name, request("GET", "/v1/stream/large", authorization=f"Bearer {token}"), **variables)
        assert statuses(report) == [503]
        assert "ssm:GetParameter" in report["called"]
        calls[name] = before | set(report["called"])


@pytest.fixture(scope="module")
def roles() -> Roles:
    """With the packer's role."""
    return make_roles(expanded(f"AuthSecretName={SECRET_NAME}"), AuthSecretName=SECRET_NAME)


@pytest.mark.parametrize("name", JUDGED)
def test_moto_grants_what_a_function_asked_for(name: str, roles: Roles) -> None:
    """A second opinion, of each recorded call on its own table, keys, objects, queues and parameters. The
    right of a function to call itself is in no role, and judged above."""
    assert len(requests[name]) > 1, "run the whole module: this is what it recorded"
    refused = [
        (action, target, keys)
        for call, target, *keys in requests[name]
        for action in actions([call])
        if action != "lambda:InvokeFunction" and not roles.allow(name, action, target, keys)
    ]
    assert refused == []


@pytest.mark.parametrize(
    ("name", "action", "target", "keys"),
    [
        ("ReadFunction", "dynamodb:PutItem", "table:", ["log/v1/a"]),
        ("ReadFunction", "dynamodb:PutItem", "table:", ["wait/1", "log/v1/a"]),
        ("ReadFunction", "dynamodb:UpdateItem", "table:", ["log/v1/a"]),
        ("ReadFunction", "dynamodb:GetItem", "table:another", ["log/v1/a"]),
        ("ReadFunction", "s3:PutObject", "object:log/a", []),
        ("ReadFunction", "ssm:GetParameter", "parameter:/another/secret", []),
        ("LiveFunction", "dynamodb:BatchWriteItem", "table:", ["log/v1/a"]),
        ("LiveFunction", "sqs:DeleteQueue", "queue:another-queue", []),
        ("WriteFunction", "s3:DeleteObject", "object:log/a", []),
        ("WriteFunction", "sqs:CreateQueue", "queue:another-queue", []),
        ("NotifierFunction", "dynamodb:GetItem", "table:", ["bucket/another-bucket"]),
        ("NotifierFunction", "dynamodb:PutItem", "table:", ["log/v1/a#1"]),
        ("NotifierFunction", "dynamodb:UpdateItem", "table:", ["log/v1/a#1"]),
        ("NotifierFunction", "sqs:SendMessage", "queue:another-queue", []),
        ("SocketFunction", "dynamodb:PutItem", "table:", ["log/v1/a"]),
        ("SocketFunction", "dynamodb:DeleteItem", "table:", ["bucket/v1"]),
        ("SocketFunction", "dynamodb:Query", "table:", ["wait/1"]),
        ("SocketFunction", "execute-api:ManageConnections", "connection:a", []),
        ("NotifierFunction", "ssm:GetParameter", "parameter:/tidemark/secret", []),
        ("WriteFunction", "ssm:GetParameter", f"parameter:{WEBHOOK_KEYS}ds_1", []),
        ("WriteFunction", "ssm:PutParameter", "parameter:/tidemark/secret", []),
        ("WriteFunction", "sqs:SendMessage", f"queue:{SUBSCRIPTIONS}", []),
        ("NotifierFunction", "dynamodb:Query", "table:", ["keys"]),
        ("SubscriptionsFunction", "ssm:GetParameter", "parameter:/tidemark/secret", []),
        ("SubscriptionsFunction", "ssm:PutParameter", f"parameter:{WEBHOOK_KEYS}ds_1", []),
        ("SubscriptionsFunction", "sqs:SendMessage", "queue:tidemark-wake-1", []),
        ("JanitorFunction", "s3:PutObject", "object:log/a", []),
        ("PackerFunction", "s3:PutObject", "object:snapshot/a", []),
        ("PackerFunction", "s3:DeleteObject", "object:snapshot/a", []),
        ("PackerFunction", "s3:GetObject", "object:snapshot/a", []),
        ("PackerFunction", "dynamodb:PutItem", "table:", ["due/1"]),
        ("PackerFunction", "dynamodb:Query", "table:", ["keys"]),
        ("PackerFunction", "sqs:SendMessage", f"queue:{SUBSCRIPTIONS}", []),
        ("JanitorFunction", "sqs:SendMessage", "queue:tidemark-wake-1", []),
        ("JanitorFunction", "s3:GetObject", "object:log/a", []),
        ("JanitorFunction", "sqs:DeleteQueue", "queue:another-queue", []),
    ],
)
def test_moto_refuses_what_is_not_a_functions_business(
    name: str, action: str, target: str, keys: list[str], roles: Roles
) -> None:
    assert not roles.allow(name, action, target, keys)
