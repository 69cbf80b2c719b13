"""Routing as API Gateway does it: the most specific route of an HTTP API takes the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

ANY: Final = "ANY"
DEFAULT: Final = "$default"

#: How specific a segment of a route is: less is more.
_LITERAL, _VARIABLE, _GREEDY = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the template, `PUT /v1/stream/{proxy+}` or `$default`, and the function behind it."""

    method: str
    path: str
    function: str

    @property
    def key(self) -> str:
        return DEFAULT if self.path == DEFAULT else f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Match:
    route: Route
    #: Decoded.
    path_parameters: Mapping[str, str] = field(default_factory=dict)


def match_route(routes: Sequence[Route], method: str, path: str) -> Match | None:
    """`path` is decoded: a slash that was encoded separates too."""
    segments = path.removeprefix("/").split("/")
    found: list[tuple[tuple[int, ...], bool, Match]] = []
    for route in routes:
        if route.path == DEFAULT or route.method not in (method, ANY):
            continue
        parameters = _match_path(route.path, segments)
        if parameters is not None:
            rank = tuple(_kind(part)[0] for part in route.path.removeprefix("/").split("/"))
            found.append((rank, route.method == ANY, Match(route, parameters)))
    if found:
        return min(found, key=lambda candidate: candidate[:2])[2]
    return next((Match(route) for route in routes if route.path == DEFAULT), None)


def _match_path(path: str, segments: Sequence[str]) -> dict[str, str] | None:
    """The path parameters, or None. `{proxy+}` takes all that is left, and there must be something left."""
    parameters: dict[str, str] = {}
    pattern = path.removeprefix("/").split("/")
    for index, part in enumerate(pattern):
        kind, name = _kind(part)
        if kind == _GREEDY:
            rest = segments[index:]
            return parameters | {name: "/".join(rest)} if rest else None
        if index >= len(segments):
            return None
        if kind == _VARIABLE and segments[index]:
            parameters[name] = segments[index]
        elif segments[index] != part:
            return None
    return parameters if len(pattern) == len(segments) else None


def _kind(part: str) -> tuple[int, str]:
    if not (part.startswith("{") and part.endswith("}")):
        return _LITERAL, part
    name = part[1:-1]
    return (_GREEDY, name[:-1]) if name.endswith("+") else (_VARIABLE, name)
