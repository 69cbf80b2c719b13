"""`tidemark`: create, write, follow and inspect streams from a terminal."""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from importlib.util import find_spec
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import click

from tidemark import __version__
from tidemark.cli import commands
from tidemark.cli.commands import STREAM, RemoteServer, asks_a_server, complete_stream
from tidemark.cli.messages import append, cat, tail
from tidemark.cli.subscriptions import sub
from tidemark.cli.terminal import ProgressLine, as_json, described, show, show_rows, visible, visible_bytes
from tidemark.cli.tokens import token
from tidemark.cli.transfer import cp
from tidemark.client import NotFound, StreamGone
from tidemark.client.core import STREAM_ROOT
from tidemark.client.server import listing_of, stream_path

_HELPS: Final = {"help_option_names": ["-h", "--help"]}


@click.group(cls=commands.Commands, epilog=commands.EPILOG, context_settings=_HELPS)
@commands.with_server_options
@commands.PRINTS_JSON
@click.version_option(__version__)
def main() -> None:
    """Streams on a server, local or deployed. STREAM is a name (chat/42), a path (/agents/run-1) or a URL."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # The encoding of the output may lack characters.


@main.command(epilog="Example: tidemark serve --port 4437 --data-dir /var/lib/tidemark")
@click.option("--host", help="The address to listen on (127.0.0.1, or HOST in the environment).")
@click.option("--port", help="The port; 0 takes any free port (4437, or PORT).")
@click.option("--data-dir", help="The folder of the streams (.data, or DATA_DIR).")
@click.option("--in-memory", is_flag=True, help="Store nothing on disk.")
def serve(host: str | None, port: str | None, data_dir: str | None, *, in_memory: bool) -> None:
    """Run a server: one process with all data in one folder. Ctrl-C ends the server."""
    from tidemark.server import serve as server

    given = {"HOST": host, "PORT": port, "DATA_DIR": data_dir}
    environment = os.environ | {name: value for name, value in given.items() if value is not None}
    code = server.main(in_memory=in_memory, environment=environment)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Do not wait for a webhook that does not answer.


_DATA_DIR: Final = click.option(
    "--data-dir",
    envvar="DATA_DIR",
    default=".data",
    show_default=True,
    type=Path,
    help="The server's folder.",
)


@main.command(epilog="Example: tidemark backup --data-dir .data /backup/monday")
@commands.PRINTS_JSON
@_DATA_DIR
@click.argument("target", type=Path)
def backup(data_dir: Path, target: Path) -> None:
    """Copy a store, whose server may run, to a new folder TARGET. To restore, start a server on the copy."""
    from tidemark.cli.store import back_up

    with ProgressLine() as progress:
        back_up(data_dir, target, partial(progress.add, "files copied"))
    show({"copied": str(target)}, f"{target} has all that was committed; it can be a server's --data-dir")


@main.command(epilog="Example: tidemark verify --data-dir .data")
@commands.PRINTS_JSON
@_DATA_DIR
@click.option("--table", help="On AWS: a stack's table, in place of a folder.")
@click.option("--objects", help="The stack's bucket.")
def verify(data_dir: Path, table: str | None, objects: str | None) -> None:
    """Check a whole store (rows, streams, snapshots) and report damaged or missing parts. Changes nothing;
    exits with 1 if a part is damaged or missing."""
    from tidemark.cli.store import embedded_stores, stack_stores
    from tidemark.cli.store import verify as faults_of

    if (table is None) != (objects is None):
        raise click.UsageError("a stack's store is a table and a bucket: name --table and --objects")
    stores = stack_stores(table, objects) if table and objects else embedded_stores(data_dir)
    with ProgressLine() as progress:
        faults = list(faults_of(stores, lambda _: progress.add("streams checked")))
    for fault in faults:
        show({"fault": fault}, fault)
    count = progress.count
    show({"streams": count, "faults": len(faults)}, f"{count} streams, {len(faults)} faults")
    sys.exit(1 if faults else 0)


@main.command(epilog="Example: tidemark ls chat/ --json")
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
            lambda each, _, at: (each["bucket_id"], f"{each['streams']} streams", at(each["created_at_ms"])),
        )
        return
    path = "/v1/streams" if bucket == "v1" else f"/{bucket}/streams"
    show_rows(
        server.pages(path, "streams", prefix=prefix),
        ("STREAM", "STATUS", "TYPE", "SIZE", "WRITTEN"),
        lambda each, size, when: (
            each["stream_id"],
            each["status"].lower(),
            each["content_type"],
            size(each["tail_offset"]),
            when(each["last_write_at_ms"]),
        ),
    )


@main.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@asks_a_server
def archive(server: RemoteServer, arguments: tuple[str, ...]) -> None:
    """Write the data of streams into an Iceberg table: see `tidemark archive --help`."""
    if find_spec("pyiceberg") is None:
        raise click.ClickException("pyiceberg is missing: install tidemark-streams[archive]")
    from tidemark.spark.job import archive_here

    if not re.search("--table[= ]|--transport[= ]dynamodb", " ".join(arguments)):
        arguments = ("--url", server.url, *arguments)
        # Not an argument, which `ps` would show.
        os.environ["TIDEMARK_TOKEN"] = "" if server.withholds_token else server.token
    sys.exit(archive_here(arguments))


@main.command(epilog="Example: tidemark --profile prod mcp --write")
@click.option("--write", is_flag=True, help="Also offer the tool `append`.")
@asks_a_server
def mcp(server: RemoteServer, *, write: bool) -> None:
    """Offer the streams to a model as tools: a server of the Model Context Protocol over the standard input
    and output. The tools only read, unless --write."""
    try:
        from tidemark.cli.mcp import serve_tools
    except ImportError:
        text = "The package mcp is missing, or older than 2: pip install 'tidemark-streams[mcp]'"
        raise click.ClickException(text) from None
    serve_tools(server, click.get_current_context().meta.get("server", {}), writes=write)


@main.command(epilog="Example: tidemark info chat/42")
@STREAM
@asks_a_server
def info(server: RemoteServer, stream: str) -> None:
    """Show the metadata and statistics of a stream."""
    found = server.get("/v1/stats", stream=stream_path(stream))
    show(found, described(found))


@main.command(epilog="Example: tidemark create chat/42 --content-type application/json --ttl 86400")
@STREAM
@click.option("--content-type", default="text/plain", show_default=True)
@click.option("--ttl", type=click.IntRange(1), help="Lifetime in seconds after each read or write.")
@click.option("--expires-at", help="Time of expiry, such as 2027-01-01T00:00:00Z.")
@click.option("--retain-seconds", type=click.IntRange(1), help="Messages older than this may be removed.")
@click.option(
    "--retain-bytes", type=click.IntRange(1), help="Messages before the last N bytes may be removed."
)
@click.option("--compact", is_flag=True, help="Keep the last message of each key, of a stream of JSON.")
@click.option("--compact-key", metavar="POINTER", help="Like --compact, by another key, such as /id.")
@asks_a_server
def create(
    server: RemoteServer,
    stream: str,
    content_type: str,
    *,
    compact: bool,
    compact_key: str | None,
    **creation: Any,
) -> None:
    """Create a stream. No error if it exists with the same configuration."""
    made = server.create(stream, content_type, compact=compact_key or compact, **creation)
    show({"url": made.url, "content_type": made.content_type}, made.url)


@main.command(epilog="Example: tidemark close chat/42")
@STREAM
@asks_a_server
def close(server: RemoteServer, stream: str) -> None:
    """Close a stream for all writers, forever."""
    closed = server.stream(stream).close()
    show({"offset": closed.offset, "closed": closed.closed}, f"closed at {closed.offset}")


@main.command(epilog="Example: tidemark delete chat/ --prefix")
@STREAM
@click.option("--missing-ok", is_flag=True, help="No error if there is no such stream.")
@click.option("--prefix", is_flag=True, help="All streams whose names begin with STREAM; asks first.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@asks_a_server
def delete(server: RemoteServer, stream: str, *, missing_ok: bool, prefix: bool, yes: bool) -> None:
    """Delete a stream."""
    path = stream_path(stream)
    if prefix:
        return delete_all(server, path, yes=yes)
    try:
        server.stream(stream).delete()
    except (NotFound, StreamGone):
        if not missing_ok:
            raise
        show({"deleted": None}, f"{path} does not exist")
    else:
        show({"deleted": path}, f"{path} is deleted")


def delete_all(server: RemoteServer, path: str, *, yes: bool) -> None:
    listing, prefix, before = listing_of(unquote(path).removeprefix(STREAM_ROOT))
    names = [each["stream_id"] for each in server.pages(listing, "streams", prefix=prefix)]
    if names and not yes:
        question = f"Delete {len(names)} streams, {visible(names[0])} to {visible(names[-1])}?"
        click.confirm(question, abort=True, err=True)
    for name in names:
        server.stream((before or STREAM_ROOT) + quote(name)).delete(missing_ok=True)
    show({"deleted": len(names)}, f"{len(names)} streams are deleted")


@main.command(epilog="Example: tidemark fork chat/42 chat/43 --at 0000000000000120")
@click.argument("source", shell_complete=complete_stream)
@click.argument("target", shell_complete=complete_stream)
@click.option("--at", help="The offset of the fork (the source's tail).")
@asks_a_server
def fork(server: RemoteServer, source: str, target: str, at: str | None) -> None:
    """Create TARGET with the data of SOURCE, on the same server. Later writes to one do not
    change the other."""
    server = server.serving(source)
    if server.serving(target).url != server.url:
        raise click.UsageError("SOURCE and TARGET are on two servers: use tidemark cp")
    made = server.create(target, None, forked_from=stream_path(source), fork_offset=at)
    show({"url": made.url, "content_type": made.content_type}, made.url)


@main.group(epilog="Example: tidemark snapshot get /notes/report")
def snapshot() -> None:
    """Publish and get the snapshot of a stream in a bucket (/notes/report)."""


@snapshot.command(epilog="Example: tidemark snapshot publish /notes/report state.json --at OFFSET")
@STREAM
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--at", required=True, help="The snapshot covers all messages before this offset.")
@click.option("--content-type", default="application/octet-stream", show_default=True)
@asks_a_server
def publish(server: RemoteServer, stream: str, file: BufferedReader, at: str, content_type: str) -> None:
    """Publish a file or the standard input. Messages before the offset cannot be read any more."""
    server.stream(stream).publish_snapshot(file.read(), offset=at, content_type=content_type)
    show({"offset": at}, f"published at {at}")


@snapshot.command(epilog="Example: tidemark snapshot get /notes/report > state.json")
@STREAM
@click.option("--at", help="The offset of a snapshot, instead of the latest.")
@asks_a_server
def get(server: RemoteServer, stream: str, at: str | None) -> None:
    """Print the snapshot as it was published. With --json: its offset, content type and size."""
    found = server.stream(stream).snapshot(at)
    if as_json():
        show({"offset": found.offset, "content_type": found.content_type, "bytes": len(found.data)}, "")
    else:
        out = sys.stdout.buffer
        out.write(visible_bytes(found.data) if out.isatty() else found.data)


for _command in (append, cat, cp, sub, tail, token):
    main.add_command(_command)


@main.command(epilog='Example: eval "$(tidemark completion bash)"')
@click.argument("shell", type=click.Choice([*commands.SHELLS]))
def completion(shell: str) -> None:
    """Print the script by which a shell completes commands and names of streams: eval "$(tidemark completion
    bash)", or tidemark completion fish | source."""
    click.echo(commands.SHELLS[shell](main, {}, "tidemark", "_TIDEMARK_COMPLETE").source())


if __name__ == "__main__":
    main()
