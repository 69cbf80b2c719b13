"""`tidemark top`: the busiest streams of a server of your own."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any, Final

import click

from tidemark.client import NotFound
from tidemark.ops.client import RemoteServer
from tidemark.ops.commands import asks_a_server
from tidemark.ops.terminal import as_json, columns, show_rows, size

#: Go to the first line and erase the screen.
_CLEAR: Final = "\x1b[H\x1b[2J"
_HEADER: Final = ("STREAM", "APPENDS/S", "APPENDED/S", "READS/S", "READ/S")


@click.command()
@click.option("--once", is_flag=True, help="Print once, as if the output were no terminal.")
@click.option("--every", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds.")
@asks_a_server
def top(server: RemoteServer, every: float, *, once: bool) -> None:
    """Show the streams with the most appends and reads in the last 30 to 60 seconds, until Ctrl-C. A
    deployment does not count them."""
    while True:
        streams = traffic(server)
        if once or as_json() or not sys.stdout.isatty():
            show_rows(streams, _HEADER, cells, lambda each: "  ".join(cells(each)))
            return
        height = shutil.get_terminal_size().lines - 1
        lines = [f"{server.url}  {time.strftime('%H:%M:%S')}", "", *columns(_HEADER, map(cells, streams))]
        click.echo(_CLEAR + "\n".join(lines[:height]))
        time.sleep(every)


def traffic(server: RemoteServer) -> list[dict[str, Any]]:
    try:
        found = server.get("/v1/traffic")
    except NotFound as missing:
        raise click.ClickException(f"this server does not count its traffic: {missing}") from None
    return [{**each, "seconds": found["seconds"]} for each in found["streams"]]


def cells(stream: dict[str, Any]) -> list[str]:
    bucket, seconds = stream["bucket_id"], max(stream["seconds"], 0.001)
    name = stream["stream_id"] if bucket == "v1" else f"/{bucket}/{stream['stream_id']}"
    return [
        name,
        f"{stream['appends'] / seconds:.1f}",
        size(stream["append_bytes"] / seconds),
        f"{stream['reads'] / seconds:.1f}",
        size(stream["read_bytes"] / seconds),
    ]
