"""How the local stack is to run, from the environment."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidemark.local.connections import InvalidLimit, Limits
from tidemark.settings import InvalidSetting, parse_boolean

MAX_WORKERS: Final = 64


class InvalidConfiguration(ValueError):
    """An environment variable has a value that cannot be used; the message names it."""


class Via(enum.Enum):
    """The way in."""

    ASGI = "asgi"
    LAMBDA = "lambda"


@dataclass(frozen=True)
class LocalConfiguration:
    host: str = "127.0.0.1"
    #: 0 takes any free port.
    port: int = 4437
    data_dir: Path = Path(".data")
    via: Via = Via.ASGI
    #: 0 leaves the janitor out.
    janitor_seconds: float = 300.0
    #: Whether `VIA=lambda` has the edge in front.
    edge: bool = True
    #: Processes that serve requests.
    workers: int = 1
    #: What a connection may take, and how many there may be.
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> LocalConfiguration:
        """Raises InvalidConfiguration."""
        port = environment.get("PORT") or str(cls.port)
        if not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise InvalidConfiguration(f"PORT must be a number from 0 to 65535, got {port!r}")
        workers = environment.get("WORKERS") or str(cls.workers)
        if not (workers.isascii() and workers.isdigit()) or not 1 <= int(workers) <= MAX_WORKERS:
            raise InvalidConfiguration(f"WORKERS must be a number from 1 to {MAX_WORKERS}, got {workers!r}")
        via = environment.get("VIA") or cls.via.value
        if via not in [each.value for each in Via]:
            choices = " or ".join(each.value for each in Via)
            raise InvalidConfiguration(f"VIA must be {choices}, got {via!r}")
        try:
            edge = parse_boolean(environment, "EDGE", default=cls.edge)
            limits = Limits.from_environment(environment)
        except (InvalidSetting, InvalidLimit) as error:
            raise InvalidConfiguration(str(error)) from None
        return cls(
            host=environment.get("HOST") or cls.host,
            port=int(port),
            data_dir=Path(environment.get("DATA_DIR") or cls.data_dir),
            via=Via(via),
            janitor_seconds=_janitor_seconds(environment.get("JANITOR_SECONDS") or str(cls.janitor_seconds)),
            edge=edge,
            workers=int(workers),
            limits=limits,
        )


def _janitor_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise InvalidConfiguration(f"JANITOR_SECONDS must be a number of seconds, got {text!r}") from None
    if not 0 <= seconds <= 86_400:
        raise InvalidConfiguration(f"JANITOR_SECONDS must be between 0 and 86400 seconds, got {text!r}")
    return seconds
