"""`tidemark`: make, write, follow and look at streams, from a terminal."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
import uuid
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

import click

from tidemark import __version__
from tidemark.client import NotFound, Stream
from tidemark.client.chunks import is_json
from tidemark.ops.bench import bench
from tidemark.ops.client import RemoteServer, stream_path
from tidemark.ops.commands import EXIT_CODES, PRINTS_JSON, STREAM, Commands, asks_a_server, checked_url
from tidemark.ops.completion import DEFAULT_URL, complete_stream
from tidemark.ops.lines import APPEND_BYTES, APPEND_LINES, groups, pieces, printed, size_of
from tidemark.ops.snapshots import fork, snapshot
from tidemark.ops.subscriptions import sub
from tidemark.ops.terminal import ago, described, instant, show, show_rows, size, visible_bytes
from tidemark.ops.top import top
from tidemark.ops.transfer import cp
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.offset import parse_read_from
from tidemark.settings import MIN_SECRET_BYTES


@click.group(cls=Commands, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--url",
    envvar="TIDEMARK_URL",
    default=DEFAULT_URL,
    show_default=True,
    callback=checked_url,
)
@click.option("--token", envvar="TOKEN", default="", help="A bearer token (or TOKEN in the environment).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one value a line.")
@click.version_option(__version__)
@click.pass_context
def main(ctx: click.Context, url: str, token: str, *, as_json: bool) -> None:
    """Streams on a server, local or deployed. STREAM is a name (chat/42), a path (/agents/run-1) or a URL."""
    ctx.obj = RemoteServer(url, token)
    ctx.meta["as_json"] = as_json


@main.command()
@click.option("--host", help="Where it listens (127.0.0.1, or HOST in the environment).")
@click.option("--port", help="0 takes any free port (4437, or PORT).")
@click.option("--data-dir", help="Where streams are kept (.data, or DATA_DIR).")
@click.option("--in-memory", is_flag=True, help="Keep nothing.")
def serve(host: str | None, port: str | None, data_dir: str | None, *, in_memory: bool) -> None:
    """Run a server: one process, and everything in one folder. Ends with Ctrl-C. (With VIA=lambda in the
    environment, in a clone: the deployed handlers.)"""
    from tidemark.server import serve as server

    given = {"HOST": host, "PORT": port, "DATA_DIR": data_dir}
    environment = os.environ | {name: value for name, value in given.items() if value is not None}
    if environment.get("VIA") == "lambda" and not in_memory:
        os.environ |= environment
        code = import_module("tidemark.local.__main__").main()
    else:
        code = server.main(in_memory=in_memory, environment=environment)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # A webhook that does not answer would hold up the end.


_DATA_DIR: Final = click.option(
    "--data-dir",
    envvar="DATA_DIR",
    default=".data",
    show_default=True,
    type=Path,
    help="The server's folder.",
)


@main.command()
@PRINTS_JSON
@_DATA_DIR
@click.argument("target", type=Path)
def backup(data_dir: Path, target: Path) -> None:
    """Copy a store, whose server may run, to a new folder TARGET. To restore, start a server on the copy."""
    from tidemark.engine.sqlite_file import UnusableDatabase
    from tidemark.ops.store import NoStore, back_up

    try:
        back_up(data_dir, target)
    except (NoStore, OSError, UnusableDatabase, sqlite3.Error) as failed:
        raise click.ClickException(str(failed)) from None
    show({"copied": str(target)}, f"{target} has all that was committed; it can be a server's --data-dir")


@main.command()
@PRINTS_JSON
@_DATA_DIR
@click.option("--table", help="On AWS: a stack's table, in place of a folder.")
@click.option("--objects", help="The stack's bucket.")
def verify(data_dir: Path, table: str | None, objects: str | None) -> None:
    """Read all of a store: rows, streams, snapshots, and say what is damaged or missing. Changes nothing;
    exits 1 where anything is."""
    from tidemark.engine.sqlite_file import UnusableDatabase
    from tidemark.ops.store import NoStore, embedded_stores, stack_stores
    from tidemark.ops.store import verify as faults_of

    if (table is None) != (objects is None):
        raise click.UsageError("a stack's store is a table and a bucket: name --table and --objects")
    streams: list[object] = []
    try:
        stores = stack_stores(table, objects) if table and objects else embedded_stores(data_dir)
        faults = list(faults_of(stores, streams.append))
    except (NoStore, OSError, ProtocolError, RuntimeError, UnusableDatabase, sqlite3.Error) as failed:
        raise click.ClickException(str(failed)) from None
    for fault in faults:
        show({"fault": fault}, fault)
    show({"streams": len(streams), "faults": len(faults)}, f"{len(streams)} streams, {len(faults)} faults")
    sys.exit(1 if faults else 0)


@main.command()
@click.argument("prefix", default="", shell_complete=complete_stream)
@click.option("--bucket", default="v1", show_default=True, help="v1 is the bucket of plain streams.")
@click.option("--buckets", "of_buckets", is_flag=True, help="List the buckets.")
@asks_a_server
def ls(server: RemoteServer, prefix: str, bucket: str, *, of_buckets: bool) -> None:
    """List streams whose names begin with PREFIX, or the buckets."""
    if of_buckets:
        show_rows(
            server.pages("/v1/buckets", "buckets", prefix=prefix),
            ("BUCKET", "STREAMS", "CREATED"),
            lambda each: (each["bucket_id"], str(each["streams"]), ago(each["created_at_ms"])),
            lambda each: f"{each['bucket_id']}  {each['streams']} streams  {instant(each['created_at_ms'])}",
        )
        return
    path = "/v1/streams" if bucket == "v1" else f"/{bucket}/streams"
    show_rows(
        server.pages(path, "streams", prefix=prefix),
        ("STREAM", "STATUS", "TYPE", "SIZE", "WRITTEN"),
        lambda each: (
            *stream_cells(each),
            size(int(each["tail_offset"])),
            ago(each["last_write_at_ms"]),
        ),
        lambda each: "  ".join(
            (*stream_cells(each), f"{each['tail_offset']} bytes", instant(each["last_write_at_ms"]))
        ),
    )


def stream_cells(stream: dict[str, Any]) -> tuple[str, str, str]:
    return stream["stream_id"], stream["status"].lower(), stream["content_type"]


@main.command()
@STREAM
@asks_a_server
def info(server: RemoteServer, stream: str) -> None:
    """What is known of a stream."""
    found = server.get("/v1/stats", stream=stream_path(stream))
    show(found, described(found))


@main.command()
@STREAM
@asks_a_server
def head(server: RemoteServer, stream: str) -> None:
    """What a server of the protocol says of a stream, Tidemark or not."""
    found = server.stream(stream).head()
    told = {
        name: getattr(found, name)
        for name in ("offset", "content_type", "closed", "ttl_seconds", "expires_at", "etag")
    }
    show(told, described(told))


@main.command()
@STREAM
@click.option("--content-type", default="text/plain", show_default=True)
@click.option("--ttl", type=click.IntRange(1), help="Seconds that it is kept after each read or write.")
@click.option("--expires-at", help="When it ends, such as 2027-01-01T00:00:00Z.")
@asks_a_server
def create(
    server: RemoteServer, stream: str, content_type: str, ttl: int | None, expires_at: str | None
) -> None:
    """Create a stream; one that exists with the same configuration is as good."""
    made = server.create(stream, content_type, ttl=ttl, expires_at=expires_at)
    show({"url": made.url, "content_type": made.content_type}, made.url)


@main.command()
@STREAM
@asks_a_server
def close(server: RemoteServer, stream: str) -> None:
    """Close a stream for everybody and for good."""
    closed = server.stream(stream).close()
    show({"offset": closed.offset, "closed": closed.closed}, f"closed at {closed.offset}")


@main.command()
@STREAM
@click.option("--missing-ok", is_flag=True, help="No error if there is no such stream.")
@asks_a_server
def delete(server: RemoteServer, stream: str, *, missing_ok: bool) -> None:
    """Delete a stream."""
    server.stream(stream).delete(missing_ok=missing_ok)
    show({"deleted": stream_path(stream)}, f"{stream_path(stream)} is deleted")


_FROM: Final = click.option(
    "--from", "start", default="", help="An offset, now, or a time such as 2026-11-21T10:00Z."
)
_LAST: Final = click.option("--last", "-n", type=click.IntRange(1), help="The last so many messages.")


@main.command()
@STREAM
@_FROM
@_LAST
@click.option(
    "--follow/--no-follow", "-f", default=True, help="Wait for what comes, until the stream is closed."
)
@click.option("--wait", is_flag=True, help="Wait for a stream that is not there yet.")
@asks_a_server
def tail(
    server: RemoteServer, stream: str, start: str, last: int | None, *, follow: bool, wait: bool
) -> None:
    """Print a stream's messages, each JSON message on a line of its own; from the beginning unless told."""
    print_messages(server, stream, start, last, follow=follow, wait=wait)


@main.command()
@STREAM
@_FROM
@_LAST
@asks_a_server
def cat(server: RemoteServer, stream: str, start: str, last: int | None) -> None:
    """Print the messages that a stream has now: as `tail --no-follow`."""
    print_messages(server, stream, start, last, follow=False)


def print_messages(
    server: RemoteServer,
    stream: str,
    start: str,
    last: int | None,
    *,
    follow: bool,
    wait: bool = False,
) -> None:
    if start and last:
        raise click.UsageError("Give --from or --last, not both")
    out = sys.stdout.buffer
    is_terminal = out.isatty()
    source = server.stream(stream)
    # Of a stream that is still to come, everything is new.
    offset = "" if wait and is_missing(source) else resolve_start(server, stream_path(stream), start, last)
    # Long-polls are byte for byte what was written; an event stream splits text into lines.
    for chunk in source.follow(
        offset or "-1",
        live="long-poll" if follow else False,
        gone="error" if offset else "earliest",
        missing="wait" if wait else "error",
    ):
        for number, data in enumerate(printed(chunk)):
            out.write(visible_bytes(data) if is_terminal else data)
            if number == 0:
                out.flush()  # The rest of a long page takes a while.
        out.flush()


def is_missing(stream: Stream) -> bool:
    try:
        stream.head()
    except NotFound:
        return True
    return False


def resolve_start(server: RemoteServer, path: str, start: str, last: int | None) -> str:
    """An offset; empty for the earliest that is retained."""
    if last is None and parse_read_from(start or None) is not None:
        return start
    asked = {"last": str(last)} if last is not None else {"from": start}
    return str(server.get("/v1/start", stream=path, **asked)["offset"])


@main.command()
@STREAM
@click.option("--create", "content_type", help="Create the stream with this content type if it is not there.")
@click.option("--close", is_flag=True, help="Close the stream at the end of the input.")
@click.argument("file", type=click.File("rb"), default="-")
@asks_a_server
def append(
    server: RemoteServer, stream: str, content_type: str | None, file: BufferedReader, *, close: bool
) -> None:
    """Append a file or the standard input: byte for byte, or, to a JSON stream, each line as a message."""
    target = server.stream(stream)
    if content_type is not None:
        target = server.create(stream, content_type)
    of_json = is_json(target.head().content_type)
    sent_bytes = sent_messages = 0
    file_bytes = size_of(file)
    # A producer, so that what is sent again because no answer came lands once.
    producer = target.producer(
        f"tidemark-{uuid.uuid4().hex}",
        closes=close,
        max_batch_bytes=APPEND_BYTES,
        max_batch_messages=APPEND_LINES,
        max_held_bytes=4 * APPEND_BYTES,
    )
    is_hidden = not file_bytes or not sys.stderr.isatty()
    shown = click.progressbar(
        range(file_bytes), label="bytes", file=sys.stderr, show_pos=True, hidden=is_hidden
    )
    with producer, shown as bar:
        try:
            for messages in groups(file) if of_json else pieces(file):
                for message in messages:
                    producer.append(message)
                sent_messages += len(messages)
                sent_bytes += sum(map(len, messages))
                if file_bytes:
                    bar.update(file.tell() - bar.pos)
        except click.ClickException:
            producer.flush()  # What the message says was appended has been.
            raise
    if of_json:
        show({"messages": sent_messages, "bytes": sent_bytes}, f"{sent_messages} messages")
    else:
        show({"bytes": sent_bytes}, f"{sent_bytes} bytes")


for _command in (bench, cp, fork, snapshot, sub, top):
    main.add_command(_command)


@main.command()
@click.option("--secret-name", help="The SSM parameter with the secret, such as /tidemark/auth-secret.")
@click.option("--scopes", default="read:v1 write:v1 manage:v1", show_default=True)
@click.option("--hours", type=float, default=1.0, show_default=True, help="How long the token is valid.")
def token(secret_name: str | None, scopes: str, hours: float) -> None:
    """Print a token, signed by the first line of the secret in AUTH_SECRET or of --secret-name."""
    import jwt

    secret = parameter(secret_name) if secret_name else os.environ.get("AUTH_SECRET", "")
    secret = secret.split("\n", 1)[0].strip()
    if len(secret.encode()) < MIN_SECRET_BYTES:
        raise click.UsageError(
            f"the secret has {len(secret.encode())} bytes and must have {MIN_SECRET_BYTES}: "
            "set AUTH_SECRET, or give --secret-name"
        )
    click.echo(jwt.encode({"exp": int(time.time() + hours * 3600), "scope": scopes}, secret, "HS256"))


def parameter(name: str) -> str:
    import boto3

    return str(boto3.client("ssm").get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"])


if __name__ == "__main__":
    main()
