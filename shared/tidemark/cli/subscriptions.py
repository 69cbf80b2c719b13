"""`tidemark sub`: subscriptions, and the steps of a worker by hand."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from typing import Any, Final, TextIO
from urllib.parse import quote

import click

from tidemark.cli.commands import EXIT_CODES, RemoteServer, asks_a_server
from tidemark.cli.terminal import described, show, show_rows

_PATH: Final = "/v1/stream/__ds/subscriptions"
_ID: Final = click.argument("subscription", metavar="ID")
_WAKE: Final = click.argument("wake", type=click.File("r"), default="-")


@click.group(epilog=EXIT_CODES)
def sub() -> None:
    """List, create and delete subscriptions; claim and ack the wakes of a pull-wake subscription."""


def path_of(subscription: str) -> str:
    return f"{_PATH}/{quote(subscription, safe='')}"


def post(server: RemoteServer, subscription: str, step: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON of the answer; None if it has no body."""
    said = server.ask("POST", f"{path_of(subscription)}/{step}", *encoded(body)).body
    return json.loads(said) if said else None


def encoded(body: dict[str, Any] | None) -> tuple[bytes, dict[str, str]]:
    if body is None:
        return b"", {}
    return json.dumps(body).encode(), {"Content-Type": "application/json"}


@sub.command()
@click.argument("prefix", default="")
@asks_a_server
def ls(server: RemoteServer, prefix: str) -> None:
    """List subscriptions whose ids begin with PREFIX."""

    def cells(each: dict[str, Any]) -> list[str]:
        wake = each["wake"]
        told = [wake["state"], str(wake["attempts"]), wake["holder"] or "-", each["pattern"] or "-"]
        return [each["id"], each["type"], *told]

    found = server.pages(_PATH, "subscriptions", prefix=prefix)
    header = ("ID", "TYPE", "STATE", "FAILED", "HOLDER", "PATTERN")
    show_rows(found, header, cells, lambda each: "  ".join(cells(each)))


@sub.command()
@_ID
@asks_a_server
def info(server: RemoteServer, subscription: str) -> None:
    """Show a subscription, and how far each of its streams is acked."""
    found = server.get(path_of(subscription))
    show(found, described(found))


@sub.command()
@_ID
@click.option("--pattern", help="The streams to follow, such as tasks/*.")
@click.option("--stream", "streams", multiple=True, help="A stream to follow; may be given again.")
@click.option("--wake-stream", help="Workers pull: the JSON stream that gets an event.")
@click.option("--webhook", help="Or this URL is called.")
@click.option(
    "--lease", type=click.FloatRange(max=1e6), default=30.0, show_default=True, help="Seconds of a claim."
)
@asks_a_server
def create(
    server: RemoteServer,
    subscription: str,
    *,
    pattern: str | None,
    streams: tuple[str, ...],
    wake_stream: str | None,
    webhook: str | None,
    lease: float,
) -> None:
    """Create a subscription; one that exists with the same configuration is as good."""
    if (wake_stream is None) == (webhook is None):
        raise click.UsageError("give --wake-stream or --webhook")
    target = {"wake_stream": wake_stream} if wake_stream else {"webhook": {"url": webhook}}
    asked: dict[str, Any] = {
        "type": "pull-wake" if wake_stream else "webhook",
        "lease_ttl_ms": round(lease * 1000),
        **target,
    }
    asked |= {"pattern": pattern} if pattern else {}
    asked |= {"streams": streams} if streams else {}
    made = json.loads(server.ask("PUT", path_of(subscription), *encoded(asked)).body)
    show(made, described(made))


@sub.command()
@_ID
@asks_a_server
def delete(server: RemoteServer, subscription: str) -> None:
    """Delete a subscription; one that is not there is as good."""
    server.ask("DELETE", path_of(subscription))
    show({"deleted": subscription}, f"{subscription} is deleted")


@sub.command()
@_ID
@asks_a_server
def wake(server: RemoteServer, subscription: str) -> None:
    """Deliver what is pending now, and not at the time of the next attempt."""
    begun = post(server, subscription, "wake")
    show(begun, described(begun))


@sub.command()
@_ID
@click.option("--worker", default=socket.gethostname, help="The name of the holder (this machine's).")
@asks_a_server
def claim(server: RemoteServer, subscription: str, worker: str) -> None:
    """Claim what is pending. Prints the wake as JSON, which `ack` and `release` take."""
    click.echo(json.dumps(post(server, subscription, "claim", {"worker": worker})))


@sub.command()
@_ID
@_WAKE
@click.option("--extend", is_flag=True, help="Ack nothing: hold the wake for another lease.")
@asks_a_server
def ack(server: RemoteServer, subscription: str, wake: TextIO, *, extend: bool) -> None:
    """Ack a wake, as `claim` printed it: each stream up to its tail_offset."""
    named, acks, server = claimed_of(server, wake)
    answer = post(server, subscription, "ack", named | ({} if extend else {"acks": acks, "done": True}))
    show(
        answer, "extended" if extend else f"acked; {'more' if answer['next_wake'] else 'nothing'} is pending"
    )


@sub.command()
@_ID
@_WAKE
@asks_a_server
def release(server: RemoteServer, subscription: str, wake: TextIO) -> None:
    """Give a wake back, as `claim` printed it, for another worker."""
    named, _, server = claimed_of(server, wake)
    post(server, subscription, "release", named)
    show({"released": subscription}, "released")


def claimed_of(server: RemoteServer, wake: TextIO) -> tuple[dict[str, Any], list[Any], RemoteServer]:
    """The names of the wake, its acks, and the server with the wake's own token."""
    try:
        claimed = json.load(wake)
        named = {name: claimed[name] for name in ("wake_id", "generation")}
        acks = [{"stream": each["path"], "offset": each["tail_offset"]} for each in claimed["streams"]]
        return named, acks, replace(server, token=claimed["token"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise click.ClickException("the input is not a wake, as `tidemark sub claim` prints it") from None
