"""`tidemark sub`: subscriptions."""

from __future__ import annotations

from typing import Any, Final

import click

from tidemark.cli.commands import RemoteServer, asks_a_server
from tidemark.cli.terminal import described, show, show_rows

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
    **more: Any,
) -> None:
    """Create a subscription. No error if it exists with the same configuration."""
    if (wake_stream is None) == (webhook is None):
        raise click.UsageError("give --wake-stream or --webhook")
    target = {"wake_stream": wake_stream} if wake_stream else {"webhook": {"url": webhook}}
    asked: dict[str, Any] = {
        "type": "pull-wake" if wake_stream else "webhook",
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
