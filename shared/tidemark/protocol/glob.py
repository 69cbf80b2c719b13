"""Glob patterns over stream paths (§6.2): `*` matches one segment, `**` any number of segments.

A star inside of a longer segment is a plain character, and so is the segment `%2A`: a name may hold a star.
"""

from __future__ import annotations

from typing import Final

ONE: Final = "*"
ANY: Final = "**"


def matches(pattern: str, path: str) -> bool:
    """Whether the whole path matches. Takes segments × segments steps, however many `**` there are."""
    segments = path.split("/")
    # reachable[i]: the part of the pattern seen so far matches the first i segments.
    reachable = [True] + [False] * len(segments)
    for part in pattern.split("/"):
        if part == ANY:
            for index in range(1, len(reachable)):
                reachable[index] = reachable[index] or reachable[index - 1]
        else:
            literal = part.replace("%2A", ONE).replace("%2a", ONE)
            for index in range(len(segments), 0, -1):
                reachable[index] = reachable[index - 1] and (part == ONE or segments[index - 1] == literal)
            reachable[0] = False
    return reachable[-1]


def literal_prefix(pattern: str) -> str:
    """A prefix of every matching path; the whole path if the pattern has no wildcard."""
    parts = [part.replace("%2A", ONE).replace("%2a", ONE) for part in pattern.split("/")]
    wild = next((index for index, part in enumerate(pattern.split("/")) if part in {ONE, ANY}), None)
    if wild is None:
        return "/".join(parts)
    # `a/**` matches `a` itself too, so the slash before `**` is not part of the prefix.
    before = "/".join(parts[:wild])
    return before + "/" if before and pattern.split("/")[wild] == ONE else before
