"""The calls to SQS, on the local engine: what they return, and what they raise."""

import socket
from collections.abc import Iterator

import boto3
import pytest
from botocore.config import Config

from tests.support import World
from tests.wake.support import make_prefix, make_queues, shared_sqs
from tidemark.aws.sqs import QueueGone, Queues, QueueUnavailable
from tidemark.wake.queue import NotAWakeMessage, WakeMessage, decode_message, encode_message

pytestmark = pytest.mark.each_engine

NOW_MS = 1_800_000_000_000


@pytest.fixture
def queues(world: World) -> Iterator[Queues]:
    made = make_queues()
    yield made
    for url in made.all():
        made.delete(url)


def test_a_message_is_received_once(queues: Queues) -> None:
    """Also messages that need more than one call. Nothing is deleted, and none comes twice."""
    url = queues.create(NOW_MS)
    sent = [f"message {number}" for number in range(25)]
    queues.send(url, sent)
    received: list[str] = []
    while bodies := queues.receive(url, 0):
        assert len(bodies) <= 10
        received += bodies
    assert sorted(received) == sorted(sent)
    assert queues.receive(url, 1) == []


def test_a_message_lives_for_one_minute(queues: Queues) -> None:
    """After a receive it stays hidden for longer than it lives, so it need not be deleted."""
    url = queues.create(NOW_MS)
    attributes = shared_sqs().get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert attributes["MessageRetentionPeriod"] == "60"
    assert int(attributes["VisibilityTimeout"]) > 60


def test_the_name_of_a_queue_is_unique_and_holds_its_creation_time(queues: Queues) -> None:
    urls = {queues.create(NOW_MS), queues.create(NOW_MS)}
    assert [queues.made_ms(url) for url in urls] == [NOW_MS, NOW_MS]
    assert set(queues.all()) == urls


@pytest.mark.parametrize("name", ["other", "orders-65f0-x", "{}", "{}nothex-x", "{}65f0", "{}65f0-"])
def test_queues_of_other_systems_are_not_listed(queues: Queues, name: str) -> None:
    """The sweep removes queues by this list."""
    assert queues.made_ms(f"https://sqs/1/{name.format(queues._prefix)}") is None


def test_every_call_on_a_removed_queue_raises_queue_gone(queues: Queues) -> None:
    url = queues.create(NOW_MS)
    queues.delete(url)
    for ask in (lambda: queues.receive(url, 0), lambda: queues.send(url, ["x"]), lambda: queues.delete(url)):
        with pytest.raises(QueueGone):
            ask()


def test_an_unreachable_sqs_raises_queue_unavailable_and_not_queue_gone() -> None:
    """Otherwise a reader would create one queue after another while SQS is down."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    known = {"region_name": "us-east-1", "aws_access_key_id": "x", "aws_secret_access_key": "x"}
    once = Config(retries={"total_max_attempts": 1})
    client = boto3.client("sqs", endpoint_url=f"http://127.0.0.1:{port}", config=once, **known)
    queues = Queues(lambda: client, make_prefix())
    for ask in (
        lambda: queues.create(NOW_MS),
        lambda: queues.receive("http://127.0.0.1/1/q", 0),
        lambda: queues.send("http://127.0.0.1/1/q", ["x"]),
        lambda: list(queues.all()),
    ):
        with pytest.raises(QueueUnavailable):
            ask()


def test_a_message_that_sqs_refuses_raises_queue_unavailable() -> None:
    """SQS answers a batch with 200 even if it has accepted none of it."""

    class Refusing:
        def send_message_batch(self, **_: object) -> dict[str, object]:
            return {"Failed": [{"Id": "0", "Code": "InternalError", "SenderFault": False}]}

    with pytest.raises(QueueUnavailable, match="InternalError"):
        Queues(Refusing, make_prefix()).send("q", ["x"])


@pytest.mark.parametrize("name", ["plain", "with space", "schräg/🌊", '"quoted"#hash', "\ufffe\uffff"])
def test_a_wake_message_arrives_as_it_was_sent(queues: Queues, name: str) -> None:
    """Also one with characters that a stream's name may hold and SQS refuses."""
    message = WakeMessage(f"log/v1/{name}#incarnation", 17)
    url = queues.create(NOW_MS)
    queues.send(url, [encode_message(message)])
    [body] = queues.receive(url, 5)
    assert body.isascii()
    assert body.isprintable()
    assert decode_message(body) == message
    assert (message.key.bucket, message.key.stream_id, message.incarnation) == ("v1", name, "incarnation")


@pytest.mark.parametrize(
    "body", ["", "x", "[]", "{}", "1", "null", '["log/v1/a#i"]', '["log/v1/a#i","b"]', '["a",1]', "[1,1]"]
)
def test_other_message_bodies_raise_not_a_wake_message(body: str) -> None:
    with pytest.raises(NotAWakeMessage):
        decode_message(body)
