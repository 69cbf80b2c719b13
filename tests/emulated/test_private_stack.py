"""The deployed template with tokens, and IAM enforced by the emulator, function by function."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import jwt
import pytest
from websockets.sync.client import ClientConnection, connect

from tests.conformance.servers import running, temporary_directory
from tests.emulated.deployment import Stack, deploy
from tests.emulated.emulator import Emulator
from tests.waiting import until
from tidemark.ops import smoke
from tidemark.service.stream_registry import REMEMBER_MS

pytestmark = pytest.mark.emulated

#: Readers look by themselves every twenty seconds. The trigger needs a fraction of one.
LOOK_SECONDS = 20
#: After the wait began, so that the reader is surely registered.
APPEND_AFTER_SECONDS = 3.0


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with temporary_directory() as directory:
        emulator = Emulator(directory, ["private"], enforce_iam=True)
        with running(emulator.server):
            yield emulator


@pytest.fixture(scope="module")
def key(emulator: Emulator) -> str:
    arn: str = emulator.client("kms").create_key()["KeyMetadata"]["Arn"]
    return arn


@pytest.fixture(scope="module")
def stack(emulator: Emulator, key: str) -> Stack:
    """The stack draws the secret for tokens itself. What it stores is encrypted with the customer's key."""
    given = {"AuthSecretName": "/private/auth-secret", "Edge": "false", "WriterConcurrency": "2"}
    return deploy(emulator, "private", given | {"AccessLogs": "true", "KeyArn": key})


@pytest.fixture(scope="module")
def token(emulator: Emulator, stack: Stack) -> Callable[[str], str]:
    """Signed with the stack's secret."""
    kept = emulator.client("ssm").get_parameter(Name="/private/auth-secret", WithDecryption=True)
    secret = kept["Parameter"]["Value"]
    return lambda scope: jwt.encode({"exp": int(time.time()) + 3600, "scope": scope}, secret, "HS256")


@pytest.fixture
def client(stack: Stack, token: Callable[[str], str]) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {token('read:v1 write:v1 manage:v1')}", "Content-Type": "text/plain"}
    with httpx.Client(base_url=stack.url, timeout=90, trust_env=False, headers=headers) as client:
        yield client


def function_named(emulator: Emulator, part: str) -> dict[str, Any]:
    functions = emulator.client("lambda").list_functions()["Functions"]
    [found] = [each for each in functions if part in each["FunctionName"]]
    return found


@contextmanager
def denied(emulator: Emulator, function: str, action: str) -> Iterator[None]:
    """The function's role is denied an action meanwhile."""
    role = function_named(emulator, function)["Role"].rpartition("/")[2]
    statement = {"Effect": "Deny", "Action": action, "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam = emulator.client("iam")
    iam.put_role_policy(RoleName=role, PolicyName="denied", PolicyDocument=policy)
    try:
        yield
    finally:
        iam.delete_role_policy(RoleName=role, PolicyName="denied")


def test_a_flood_of_the_writers_url_stops_no_append_by_the_api(
    emulator: Emulator, stack: Stack, client: httpx.Client
) -> None:
    """Anybody can send more than the reservation without a token. Lambda then answers 429 there."""
    statuses: Counter[int] = Counter()
    over = threading.Event()
    headers = {"Host": httpx.URL(stack.outputs["WriterUrl"]).host, "Content-Type": "text/plain"}

    def flood() -> None:
        with httpx.Client(
            base_url=emulator.endpoint, timeout=90, trust_env=False, headers=headers
        ) as stranger:
            while not over.is_set():
                statuses[stranger.post("/v1/stream/flooded", content=b"x").status_code] += 1

    assert client.put("/v1/stream/flooded").status_code == 201
    threads = [threading.Thread(target=flood) for _ in range(12)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: statuses[429] > 50)
        turned_away = statuses[429]
        appends = [client.post("/v1/stream/flooded", content=b"y").status_code for _ in range(30)]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert appends == [204] * 30
    assert statuses[429] > turned_away, "the flood had ended before the appends"
    assert set(statuses) == {401, 429}
    assert client.get("/v1/stream/flooded", params={"offset": "-1"}).content == b"y" * 30


def test_smoke_passes_with_a_token(
    stack: Stack, token: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step of a stream's life, by the roles as IAM evaluates them."""
    monkeypatch.setenv("TIDEMARK_TOKEN", token("read:v1 write:v1 manage:v1"))
    assert smoke.main([stack.url]) == 0


def test_iam_is_enforced(emulator: Emulator, client: httpx.Client) -> None:
    """The negative control: what a role is denied does not happen, and happens again afterwards."""
    client.put("/v1/stream/closed")
    with denied(emulator, "WriteFunction", "dynamodb:PutItem"):
        assert client.post("/v1/stream/closed", content=b"x").status_code == 503
    assert client.post("/v1/stream/closed", content=b"y").status_code == 204
    assert client.get("/v1/stream/closed", params={"offset": "-1"}).content == b"y"


def test_queues_and_logs_are_encrypted_with_customers_key(emulator: Emulator, stack: Stack, key: str) -> None:
    """CloudFormation there leaves the key of a table and of a bucket out."""
    sqs, made = emulator.client("sqs"), emulator.client("cloudformation")
    found = made.describe_stack_resources(StackName=stack.name)["StackResources"]
    urls = [each["PhysicalResourceId"] for each in found if each["ResourceType"] == "AWS::SQS::Queue"]
    queues = [sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"] for url in urls]
    assert [each["KmsMasterKeyId"] for each in queues] == [key] * 3
    groups = emulator.client("logs").describe_log_groups()["logGroups"]
    own = [each["kmsKeyId"] for each in groups if "kmsKeyId" in each]
    assert own == [key] * 10


def waited(client: httpx.Client, name: str) -> tuple[httpx.Response, float]:
    """A long-poll at the tail of a new stream, and an append a moment later; seconds from that to the end."""
    created = client.put(f"/v1/stream/{name}")
    assert created.status_code == 201
    # Warm: a cold start would be measured too.
    client.get(f"/v1/stream/{name}", params={"offset": "-1"})
    appended: list[float] = []

    def append() -> None:
        appended.append(time.monotonic())
        assert client.post(f"/v1/stream/{name}", content=b"woken").status_code == 204

    timer = threading.Timer(APPEND_AFTER_SECONDS, append)
    timer.start()
    offset = created.headers["Stream-Next-Offset"]
    response = client.get(f"/v1/stream/{name}", params={"offset": offset, "live": "long-poll"})
    answered = time.monotonic()
    timer.join()
    return response, answered - appended[0]


def test_the_tables_stream_wakes_a_long_poll(client: httpx.Client) -> None:
    """Table, stream, notifier and queue, as deployed: an answer comes before the reader's own look. On a busy
    machine the first ones may not."""
    for number in range(10):
        response, seconds = waited(client, f"woken-{number}")
        assert (response.status_code, response.content) == (200, b"woken")
        if seconds < LOOK_SECONDS - APPEND_AFTER_SECONDS - 5:
            return
    pytest.fail("only the reader's own look found the appends")


def test_with_the_notifier_denied_only_the_readers_own_look_finds_the_append(
    emulator: Emulator, client: httpx.Client
) -> None:
    """The negative control of the test above: the same wait, and nobody rings. On a busy machine the reader's
    first look may come after the append."""
    with denied(emulator, "NotifierFunction", "sqs:SendMessage"):
        for number in range(10):
            response, seconds = waited(client, f"looked-{number}")
            assert (response.status_code, response.content) == (200, b"woken")
            if seconds > LOOK_SECONDS - APPEND_AFTER_SECONDS - 5:
                return
    pytest.fail("something else than the reader's own look found the appends")


def test_the_tables_stream_wakes_a_socket(client: httpx.Client, token: Callable[[str], str]) -> None:
    """The function that watches, the notifier and the API as deployed, by the roles as IAM evaluates them."""
    watch = {"watch": ["/v1/stream/watched"], "token": token("read:v1")}
    assert client.put("/v1/stream/watched").status_code == 201
    with connect(client.get("/v1/socket").json()["url"], proxy=None) as socket:
        socket.send(json.dumps({**watch, "token": ""}))
        assert told(socket)["status"] == 401
        socket.send(json.dumps({"action": "ping"}))
        socket.send(json.dumps(watch))
        tail = told(socket)
        assert (tail["offset"], tail["seconds"] > 3000) == (f"{0:016}", True)
        assert client.post("/v1/stream/watched", content=b"news").status_code == 204
        assert told(socket) == {"stream": "/v1/stream/watched", "offset": f"{4:016}"}
        assert client.delete("/v1/stream/watched").status_code == 204
        assert told(socket)["status"] == 404


def told(socket: ClientConnection) -> Any:
    """The next message; a frame may hold none."""
    while not (message := json.loads(socket.recv(timeout=120))):
        pass
    return message


def test_the_registry_of_streams_is_kept_by_the_notifiers_role(client: httpx.Client) -> None:
    """What the role may do is enough for creations, closings and ends, and for many at once."""
    root, json_type = "/v1/stream/", {"Content-Type": "application/json"}

    def wait_until_told(expected: set[tuple[str, str]]) -> None:
        deadline = time.monotonic() + 120
        told: set[tuple[str, str]] = set()
        while not told >= expected and time.monotonic() < deadline:
            time.sleep(0.5)
            events = client.get(f"{root}__registry__", params={"offset": "-1"}).json()
            told = {(event["headers"]["operation"], event["key"]) for event in events}
        assert told >= expected

    assert client.put(f"{root}__registry__", headers=json_type).status_code == 201
    nobody_remembers_none = time.monotonic() + REMEMBER_MS / 1000
    names = [f"registered/{number}" for number in range(12)]
    for name in names:
        assert client.put(root + name).status_code == 201
    # What is created and ends within the lag is told as an end alone, and closings of the first seconds may
    # be missing (docs/registry.md).
    wait_until_told({("insert", name) for name in names})
    time.sleep(max(0.0, nobody_remembers_none - time.monotonic()))
    assert client.post(root + names[0], headers={"Stream-Closed": "true"}).status_code == 204
    assert client.delete(root + names[1]).status_code == 204
    wait_until_told({("update", names[0]), ("delete", names[1])})
