"""`tidemark fork` and `tidemark snapshot`: a stream with another's data, and what replaces old messages."""

from __future__ import annotations

import json
import sys
from io import BufferedReader
from typing import Final

import click

from tidemark.client.blocking import BlockingDriver
from tidemark.client.exchange import Reply, Request, exchange
from tidemark.ops.client import PATIENCE, RemoteServer, stream_path
from tidemark.ops.commands import EXIT_CODES, STREAM, asks_a_server
from tidemark.ops.completion import complete_stream
from tidemark.ops.terminal import as_json, show, visible_bytes

#: A larger one is uploaded to the object store, and then published.
_DIRECT_BYTES: Final = 4 * 1024 * 1024


@click.command()
@click.argument("source", shell_complete=complete_stream)
@click.argument("target", shell_complete=complete_stream)
@click.option("--at", help="The offset at which the two part (the source's tail).")
@asks_a_server
def fork(server: RemoteServer, source: str, target: str, at: str | None) -> None:
    """Create TARGET with the data of SOURCE, on the same server. From then on each goes its own way."""
    server = server.serving(source)
    if server.serving(target).url != server.url:
        raise click.UsageError("SOURCE and TARGET are on two servers: use tidemark cp")
    made = server.create(target, None, forked_from=stream_path(source), fork_offset=at)
    show({"url": made.url, "content_type": made.content_type}, made.url)


@click.group(epilog=EXIT_CODES)
def snapshot() -> None:
    """Publish and get the snapshot of a stream in a bucket (/notes/report)."""


@snapshot.command()
@STREAM
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--at", required=True, help="The offset before which everything is in the snapshot.")
@click.option("--content-type", default="application/octet-stream", show_default=True)
@asks_a_server
def publish(server: RemoteServer, stream: str, file: BufferedReader, at: str, content_type: str) -> None:
    """Publish a file or the standard input. Messages before the offset cannot be read any more."""
    path, data = f"{stream_path(stream)}/snapshot/{at}", file.read()
    headers = {"Content-Type": content_type}
    if len(data) > _DIRECT_BYTES:
        place = json.loads(server.ask("POST", f"{path}/upload").body)
        request = Request(place["method"], place["url"], place["headers"], body=data)
        # The URL is the permission: the token is not for the object store.
        BlockingDriver(None, {}, {}).run(exchange(request, PATIENCE))
        headers, data = {**headers, "Snapshot-Upload": place["upload"]}, b""
    server.ask("PUT", path, data, headers)
    show({"offset": at}, f"published at {at}")


@snapshot.command()
@STREAM
@click.option("--at", help="The offset of a snapshot, instead of the latest.")
@asks_a_server
def get(server: RemoteServer, stream: str, at: str | None) -> None:
    """Print the snapshot as it was published. With --json: its offset, content type and size."""
    reply: Reply = server.ask("GET", f"{stream_path(stream)}/snapshot{f'/{at}' if at else ''}")
    if as_json():
        found = server.stream(stream).head().headers.get("stream-snapshot-offset")
        told = {"offset": at or found, "content_type": reply.headers.get("content-type")}
        show({**told, "bytes": len(reply.body)}, "")
        return
    out = sys.stdout.buffer
    out.write(visible_bytes(reply.body) if out.isatty() else reply.body)
