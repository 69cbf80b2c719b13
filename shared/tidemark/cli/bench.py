"""`tidemark bench`: a short load test of any server of the protocol, over its own streams."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import inf
from typing import Final

import click

from tidemark.cli.commands import RemoteServer, asks_a_server
from tidemark.cli.terminal import columns, show, size
from tidemark.client import Retry, Stream, StreamError
from tidemark.client.exchange import Request, exchange

#: A refusal is not retried: it is a finding, and a retry would count as a slow answer.
_ONCE: Final = Retry(max_retries=0)
#: The streams of a bench that is killed expire after so long.
_TTL_SECONDS: Final = 3600
#: The pause before an append that a reader waits for, so that the reader surely waits.
_SETTLE_SECONDS: Final = 0.1


@click.command()
@click.argument("stream", default="bench")
@click.option("--writers", type=click.IntRange(1, 256), default=4, show_default=True)
@click.option("--messages", type=click.IntRange(1), default=1, show_default=True, help="In one append.")
@click.option(
    "--size", "message_bytes", type=click.IntRange(1), default=256, show_default=True, help="Bytes."
)
@click.option("--seconds", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Of appending.")
@click.option("--wakes", type=click.IntRange(1), default=20, show_default=True, help="Long-polls.")
@asks_a_server
def bench(
    server: RemoteServer,
    stream: str,
    *,
    writers: int,
    messages: int,
    message_bytes: int,
    seconds: float,
    wakes: int,
) -> None:
    """Load test a server: appends, reads, and wakes of a waiting reader. Each writer has a new stream of its
    own, whose name begins with STREAM; it is deleted at the end. STREAM may be a URL of any server of the
    protocol."""
    base = f"{server.stream_url(stream)}-{uuid.uuid4().hex[:12]}"
    message = b'"%b"' % (b"x" * max(0, message_bytes - 2))
    body = b"[%b]" % b",".join([message] * messages)
    streams = list[Stream]()
    try:
        for number in range(writers):
            streams.append(
                Stream.create(
                    f"{base}-{number}",
                    content_type="application/json",
                    headers=server.headers,
                    retry=_ONCE,
                    ttl=_TTL_SECONDS,
                )
            )
        measured = [
            measure_appends(server, streams, body, seconds),
            measure_reads(streams),
            measure_wakes(streams[0], message, wakes),
        ]
    finally:
        for each in streams:
            with suppress(StreamError):
                server.stream(each.url).delete(missing_ok=True)
    print_report(measured, f"{writers} writers, {messages} messages of {message_bytes} bytes an append")


@dataclass(frozen=True)
class Measured:
    """`seconds` from the first request to the last answer."""

    what: str
    count: int
    bytes: int
    seconds: float
    failed: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def measured_of(
    what: str, latencies: Sequence[float], total_bytes: int, seconds: float, failed: int = 0
) -> Measured:
    ranked = sorted(latencies)

    def ms(share: float) -> float:
        return round(1000 * ranked[min(len(ranked) - 1, int(share * len(ranked)))], 3)

    return Measured(what, len(ranked), total_bytes, round(seconds, 3), failed, ms(0.5), ms(0.99), ms(1))


def measure_appends(server: RemoteServer, streams: Sequence[Stream], body: bytes, seconds: float) -> Measured:
    """Each writer sends the next append when the last one is answered, and at least one. Raises StreamError
    if all failed."""
    began = time.perf_counter()
    until = began + seconds

    def write(stream: Stream) -> tuple[list[float], list[StreamError]]:
        latencies, failures = list[float](), list[StreamError]()
        while not (latencies or failures) or time.perf_counter() < until:
            sent = time.perf_counter()
            try:
                headers = {"Content-Type": "application/json"}
                server.run(exchange(Request("POST", stream.url, headers, body=body), _ONCE))
                latencies.append(time.perf_counter() - sent)
            except StreamError as failed:
                failures.append(failed)
        return latencies, failures

    with ThreadPoolExecutor(len(streams)) as pool:
        try:
            done = list(pool.map(write, streams))
        finally:
            until = 0.0  # After Ctrl-C, the pool waits for its threads.
    latencies = [each for found, _ in done for each in found]
    failures = [each for _, found in done for each in found]
    if not latencies:
        raise failures[0]
    took = time.perf_counter() - began
    return measured_of("append", latencies, len(latencies) * len(body), took, len(failures))


def measure_reads(streams: Sequence[Stream]) -> Measured:
    """Each stream from its beginning, page by page, by a reader of its own; one latency is that of a page."""
    began, until = time.perf_counter(), inf

    def read(stream: Stream) -> tuple[list[float], int]:
        latencies, total, last = list[float](), 0, time.perf_counter()
        for chunk in stream.follow("-1", live=False):
            if time.perf_counter() > until:
                break
            latencies.append(time.perf_counter() - last)
            total += len(chunk.data)
            last = time.perf_counter()
        return latencies, total

    with ThreadPoolExecutor(len(streams)) as pool:
        try:
            done = list(pool.map(read, streams))
        finally:
            until = 0.0
    latencies = [each for found, _ in done for each in found]
    return measured_of("read", latencies, sum(total for _, total in done), time.perf_counter() - began)


def measure_wakes(
    stream: Stream, message: bytes, wakes: int, settle_seconds: float = _SETTLE_SECONDS
) -> Measured:
    """From the sending of an append to the answer of a long-poll that waits for it."""

    def append_late() -> float:
        time.sleep(settle_seconds)
        sent = time.perf_counter()
        stream.append(message)
        return sent

    began, latencies = time.perf_counter(), list[float]()
    with ThreadPoolExecutor(1) as pool:
        for _ in range(wakes):
            chunk, sent = stream.read("now"), pool.submit(append_late)
            while not (chunk := stream.read(chunk.offset, live="long-poll")).data:
                if sent.done():
                    sent.result()  # Raises what the append has raised.
            woken = time.perf_counter()
            latencies.append(woken - sent.result())
    return measured_of("wake", latencies, wakes * len(message), time.perf_counter() - began)


def print_report(measured: Sequence[Measured], load: str) -> None:
    header = ("", "COUNT", "PER SECOND", "BYTES A SECOND", "P50", "P99", "MAX", "FAILED")
    rows = [
        (
            each.what,
            f"{each.count:,}",
            # A wake waits on purpose: its rate says nothing.
            "" if each.what == "wake" else f"{each.count / each.seconds:,.1f}",
            "" if each.what == "wake" else size(each.bytes / each.seconds),
            *(f"{ms:,.1f} ms" for ms in (each.p50_ms, each.p99_ms, each.max_ms)),
            str(each.failed),
        )
        for each in measured
    ]
    text = "\n".join(columns(header, rows))
    how = (
        f"{load}; a stream and a thread for each writer,\n"
        "which sends the next append when the last is answered. A read is one page. A wake goes from the\n"
        "sending of an append to the answer of the long-poll that waited for it. Latencies include the\n"
        "network and this process, which is Python."
    )
    show({each.what: asdict(each) for each in measured}, f"{text}\n{how}")
