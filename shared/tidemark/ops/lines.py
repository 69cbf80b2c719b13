"""Messages as the commands read and print them: bytes, or each JSON message on a line of its own."""

from __future__ import annotations

import os
import stat
from codecs import BOM_UTF8
from collections.abc import Iterator
from io import BufferedReader
from typing import Final

import click

from tidemark.client import Chunk
from tidemark.client.chunks import is_json
from tidemark.protocol.errors import Malformed
from tidemark.protocol.json_text import check_value, split_array

#: Smaller than an append's limit of 4 MB, so that readers see each piece soon.
APPEND_BYTES: Final = 256 * 1024
APPEND_LINES: Final = 1000
#: What an append takes.
_LARGEST_MESSAGE: Final = 4 * 1024 * 1024


def printed(chunk: Chunk) -> Iterator[bytes]:
    """Messages of JSON as they were sent, one a line; or the bytes."""
    if not is_json(chunk.content_type):
        yield chunk.data
    elif chunk.data:
        yield from (message + b"\n" for message in split_array(chunk.data))


def pieces(file: BufferedReader) -> Iterator[list[bytes]]:
    """The bytes of each read, so that a slow pipe is not waited for."""
    while data := file.read1(APPEND_BYTES):
        yield [data]


def groups(file: BufferedReader) -> Iterator[list[bytes]]:
    """Messages that go out together: the lines of one read that are not blank. Raises ClickException for a
    line that is no JSON, once the lines before it are on their way."""
    begun, line_number = list[bytes](), 0
    for [data] in pieces(file):
        begun.append(data if begun else data.removeprefix(BOM_UTF8))
        if b"\n" in data:
            *whole, rest = b"".join(begun).split(b"\n")
            begun = [rest]
            for start in range(0, len(whole), APPEND_LINES):
                yield from _checked(whole[start : start + APPEND_LINES], line_number + start)
            line_number += len(whole)
        elif sum(map(len, begun)) > _LARGEST_MESSAGE:
            break
    yield from _checked([b"".join(begun)], line_number)


def _checked(lines: list[bytes], before: int) -> Iterator[list[bytes]]:
    """`before` is how many lines of the input precede these."""
    messages = []
    for number, line in enumerate(lines, before + 1):
        if not line.strip():
            continue
        try:
            if len(line) > _LARGEST_MESSAGE:
                raise Malformed(f"It is larger than {_LARGEST_MESSAGE:,} bytes, which an append takes")
            messages.append(check_value(line))
        except Malformed as wrong:
            if messages:
                yield messages
            raise click.ClickException(
                f"Line {number} of the input: {wrong.message}. The lines before it were appended"
            ) from None
    if messages:
        yield messages


def size_of(file: BufferedReader) -> int:
    """The size of a regular file in bytes; 0 of anything else."""
    status = os.fstat(file.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
