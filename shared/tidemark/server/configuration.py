"""How the local stack is to run, from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidemark.server.connections import Limits
from tidemark.settings import InvalidSetting, parse_boolean, parse_choice, parse_number

#: The ways in: the server itself, and the deployed handlers. The first is that of a server without VIA.
ASGI: Final = "asgi"
WAYS: Final = (ASGI, "lambda")


@dataclass(frozen=True)
class LocalConfiguration:
    host: str = "127.0.0.1"
    #: 0 takes any free port.
    port: int = 4437
    data_dir: Path = Path(".data")
    via: str = ASGI
    #: 0 leaves the janitor out.
    janitor_seconds: float = 300.0
    #: Whether `VIA=lambda` has the edge in front.
    edge: bool = True
    #: The limits of each connection, and of their number.
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> LocalConfiguration:
        """Raises InvalidSetting."""
        # Batches that are packed at once are looked for every second.
        interval = 1.0 if environment.get("PACK_AFTER_SECONDS") == "0" else cls.janitor_seconds
        return cls(
            host=environment.get("HOST") or cls.host,
            port=_port("PORT", environment.get("PORT") or str(cls.port)),
            data_dir=Path(environment.get("DATA_DIR") or cls.data_dir),
            via=parse_choice(environment, "VIA", WAYS, cls.via),
            janitor_seconds=_seconds(environment, "JANITOR_SECONDS", interval, 86_400),
            edge=parse_boolean(environment, "EDGE", default=cls.edge),
            limits=Limits.from_environment(environment),
        )


@dataclass(frozen=True)
class ContainerConfiguration:
    """How `tidemark.server.container` is to run, from the environment."""

    host: str = "0.0.0.0"  # noqa: S104 - a container's own network
    port: int = 8080
    #: How long requests have to finish once the end was asked for. ECS kills a task after 30 s.
    drain_seconds: float = 25.0
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ContainerConfiguration:
        """Raises InvalidSetting."""
        return cls(
            host=environment.get("HOST") or cls.host,
            port=_port("PORT", environment.get("PORT") or str(cls.port)),
            drain_seconds=_seconds(environment, "DRAIN_SECONDS", cls.drain_seconds, 3600),
            limits=Limits.from_environment(environment),
        )


def _port(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 65535:
        raise InvalidSetting(f"{name} must be a number from 0 to 65535, got {text!r}")
    return int(text)


def _seconds(environment: Mapping[str, str], name: str, default: float, most: int) -> float:
    return parse_number(environment, name, default, f"a number of seconds from 0 to {most}", most)
