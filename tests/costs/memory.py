"""The classes of a function's memory on paper: what a request takes and costs in each."""

from __future__ import annotations

from typing import Final

from tests.costs import prices

CLASSES_MB: Final = (256, 512, 1024, 1769)
#: So much memory comes with one whole core.
WHOLE_CORE_MB: Final = 1769
#: One call to the table, which no memory makes faster.
CALL_SECONDS: Final = 0.005
#: CPU, from `docs/internals/benchmarks.md` and `docs/internals/packs.md`: a warm append, and a
#: megabyte of messages of about a hundred bytes out of items and out of packs.
APPEND_CPU_SECONDS: Final = 0.000241
ITEMS_CPU_SECONDS_PER_MB: Final = 0.0497
PACKS_CPU_SECONDS_PER_MB: Final = 0.006
PAGE_MB: Final = 4


def milliseconds(memory_mb: int, cpu_seconds: float, calls: int) -> float:
    share = min(1.0, memory_mb / WHOLE_CORE_MB)
    return 1000 * (calls * CALL_SECONDS + cpu_seconds / share)


def dollars_per_million(memory_mb: int, request_ms: float) -> float:
    """Lambda alone: the request, and memory for as long as it takes."""
    gb_seconds = memory_mb / 1024 * request_ms / 1000
    return prices.LAMBDA_REQUEST + gb_seconds * prices.LAMBDA_GB_SECOND * 1e6


def render_memory() -> str:
    columns = "of a core | warm append, ms | $ a million | 4 MB out of items, ms | 4 MB out of packs, ms"
    lines = [f"| `MemorySize` | {columns} |", "| ---: | ---: | ---: | ---: | ---: | ---: |"]
    for memory_mb in CLASSES_MB:
        append_ms = milliseconds(memory_mb, APPEND_CPU_SECONDS, calls=1)
        items_ms = milliseconds(memory_mb, ITEMS_CPU_SECONDS_PER_MB * PAGE_MB, calls=5)
        packs_ms = milliseconds(memory_mb, PACKS_CPU_SECONDS_PER_MB * PAGE_MB, calls=3)
        lines.append(
            f"| {memory_mb:,} | {min(1.0, memory_mb / WHOLE_CORE_MB):.2f} | {append_ms:.1f} "
            f"| {dollars_per_million(memory_mb, append_ms):.2f} | {items_ms:,.0f} | {packs_ms:,.0f} |"
        )
    return "\n".join(lines)
