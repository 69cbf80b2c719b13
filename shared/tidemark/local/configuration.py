"""How the local stack is to run, from the environment."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.local.connections import InvalidLimit, Limits


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
    #: What a connection may take, and how many there may be.
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> LocalConfiguration:
        """Raises InvalidConfiguration."""
        return cls(
            host=environment.get("HOST") or cls.host,
            port=_port(environment.get("PORT") or str(cls.port)),
            data_dir=Path(environment.get("DATA_DIR") or cls.data_dir),
            via=_via(environment.get("VIA") or cls.via.value),
            janitor_seconds=_seconds(
                "JANITOR_SECONDS", environment.get("JANITOR_SECONDS"), cls.janitor_seconds
            ),
            edge=_truth("EDGE", environment.get("EDGE"), default=cls.edge),
            limits=_limits(environment),
        )


def _limits(environment: Mapping[str, str]) -> Limits:
    try:
        return Limits.from_environment(environment)
    except InvalidLimit as error:
        raise InvalidConfiguration(str(error)) from None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 65535:
        raise InvalidConfiguration(f"PORT must be a number from 0 to 65535, got {text!r}")
    return int(text)


def _via(text: str) -> Via:
    try:
        return Via(text)
    except ValueError:
        choices = " or ".join(via.value for via in Via)
        raise InvalidConfiguration(f"VIA must be {choices}, got {text!r}") from None


def _truth(name: str, text: str | None, *, default: bool) -> bool:
    if text not in {None, "", "true", "false"}:
        raise InvalidConfiguration(f"{name} must be true or false, got {text!r}")
    return text == "true" if text else default


def _seconds(name: str, text: str | None, default: float) -> float:
    try:
        seconds = float(text or default)
    except ValueError:
        raise InvalidConfiguration(f"{name} must be a number of seconds, got {text!r}") from None
    if not 0 <= seconds <= 86_400:
        raise InvalidConfiguration(f"{name} must be between 0 and 86400 seconds, got {text!r}")
    return seconds
