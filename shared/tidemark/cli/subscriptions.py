"""`tidemark sub`: subscriptions."""

from __future__ import annotations

import json
import os
import subprocess
import time
from base64 import b64decode
from typing import Any, Final

import click
import msgspec

from tidemark.cli.commands import RemoteServer, asks_a_server
from tidemark.cli.terminal import described, show, show_rows
from tidemark.client import MalformedReply
from tidemark.client.core import subscription_path

_ID: Final = click.argument("subscription", metavar="ID")


@click.group(epilog="Example: tidemark sub ls")
def sub() -> None:
    """List, create and delete subscriptions."""


@sub.command(epilog="Example: tidemark sub ls")
@click.argument("prefix", default="")
@asks_a_server
def ls(server: RemoteServer, prefix: str) -> None:
    """List subscriptions whose ids begin with PREFIX."""

    def cells(each: dict[str, Any], *_: object) -> list[str]:
        wake = each["wake"]
        state = [wake["state"], str(wake["attempts"]), wake["holder"] or "-", each["pattern"] or "-"]
        return [each["id"], each["type"], *state]

    header = ("ID", "TYPE", "STATE", "FAILED", "HOLDER", "PATTERN")
    show_rows(server.subscriptions(prefix), header, cells)


@sub.command(epilog="Example: tidemark sub info mailer")
@_ID
@asks_a_server
def info(server: RemoteServer, subscription: str) -> None:
    """Show a subscription, and how far each of its streams is acked."""
    found = server.subscription(subscription)
    show(found, described(found))


@sub.command(epilog="Example: tidemark sub create mailer --stream tasks --wake-stream wake")
@_ID
@click.option("--shared", is_flag=True, help="Workers take: each message of one --stream goes to one.")
@click.option("--key", help="With --shared: a JSON pointer; messages of one key come in order.")
@click.option("--offset", help="With --shared: where it begins, -1 for the earliest message.")
@click.option("--pattern", help="The streams to follow, such as tasks/*.")
@click.option("--stream", "streams", multiple=True, help="A stream to follow; may be given again.")
@click.option("--wake-stream", help="Workers pull: the JSON stream that gets an event.")
@click.option("--webhook", help="Or this URL is called.")
@click.option(
    "--lease", type=click.FloatRange(max=1e6), default=30.0, show_default=True, help="Seconds of a claim."
)
@click.option("--max-attempts", type=int, help="Give up after so many failures in a row.")
@click.option("--dead-letter-stream", help="The JSON stream to which events that were given up are appended.")
@asks_a_server
def create(
    server: RemoteServer,
    subscription: str,
    *,
    wake_stream: str | None,
    webhook: str | None,
    lease: float,
    shared: bool,
    **more: Any,
) -> None:
    """Create a subscription. No error if it exists with the same configuration."""
    if (wake_stream is not None) + (webhook is not None) + shared != 1:
        raise click.UsageError("give --wake-stream, --webhook or --shared")
    target: dict[str, Any] = {"wake_stream": wake_stream} if wake_stream else {}
    target |= {"webhook": {"url": webhook}} if webhook else {}
    asked: dict[str, Any] = {
        "type": "shared" if shared else "pull-wake" if wake_stream else "webhook",
        "lease_ttl_ms": round(lease * 1000),
        **target,
        **{name: value for name, value in more.items() if value},
    }
    made = server.create_subscription(subscription, **asked)
    show(made, described(made))


@sub.command(epilog="Example: tidemark sub delete mailer")
@_ID
@asks_a_server
def delete(server: RemoteServer, subscription: str) -> None:
    """Delete a subscription. No error if it does not exist."""
    server.delete_subscription(subscription)
    show({"deleted": subscription}, f"{subscription} is deleted")


_LEASES: Final = click.option(
    "--lease", "lease_seconds", type=click.FloatRange(1, 600), default=30.0, help="Seconds of a worker."
)


def _take(server: RemoteServer, subscription: str, **asked: Any) -> tuple[list[dict[str, msgspec.Raw]], bool]:
    """Return the messages, with a JSON value as it was sent, and whether the stream is worked off."""
    body = json.dumps({"worker": f"tidemark-{os.getpid()}", **asked}).encode()
    path, of_json = f"{subscription_path(subscription)}/take", {"Content-Type": "application/json"}
    reply = server.ask("POST", path, body, of_json)
    try:
        answer = msgspec.json.decode(reply.body, type=dict[str, msgspec.Raw])
        messages = msgspec.json.decode(answer["messages"], type=list[dict[str, msgspec.Raw]])
        return messages, bytes(answer["closed"]) == b"true"
    except (msgspec.MsgspecError, KeyError) as wrong:
        raise MalformedReply(f"the answer to a take is malformed: {wrong}") from wrong


@sub.command("take", epilog="Example: tidemark sub take orders --max 5 --wait 10")
@_ID
@click.option("--max", "max_messages", type=click.IntRange(1, 1000), default=10, show_default=True)
@click.option("--wait", "wait_seconds", type=click.FloatRange(0, 20), default=0.0, help="Seconds to wait.")
@click.option("--done", multiple=True, help="A receipt of work that is done; may be given again.")
@_LEASES
@asks_a_server
def print_taken(server: RemoteServer, subscription: str, **asked: Any) -> None:
    """Take messages of a shared subscription, and print each as a line of JSON."""
    for message in _take(server, subscription, **asked)[0]:
        click.echo(msgspec.json.encode(message))


@sub.command(epilog="Example: tidemark sub work orders -- ./process.sh")
@_ID
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@_LEASES
@asks_a_server
def work(server: RemoteServer, subscription: str, command: tuple[str, ...], **asked: Any) -> None:
    """Run COMMAND for each message of a shared subscription, with the message on its standard input.

    A message is done if COMMAND exits with 0; otherwise it is given back. Ends when the stream is closed and
    all is done. The variable TIDEMARK_OFFSET names the message. Write -- before COMMAND."""
    asked |= {"max_messages": 1, "wait_seconds": 20}
    settled, closed = dict[str, list[str]](), False
    while not closed:
        messages, closed = _take(server, subscription, **asked, **settled)
        settled = {}
        for each in messages:
            data, encoding = bytes(each["data"]), bytes(each.get("encoding", b""))
            if encoding:
                text = json.loads(data) or ""
                data = b64decode(text) if encoding == b'"base64"' else text.encode()
            named = os.environ | {"TIDEMARK_OFFSET": json.loads(bytes(each["offset"]))}
            ran = subprocess.run(command, input=data, env=named, check=False)  # noqa: S603 (the user's own)
            settled = {"release" if ran.returncode else "done": [json.loads(bytes(each["receipt"]))]}
            time.sleep(1 if ran.returncode else 0)
