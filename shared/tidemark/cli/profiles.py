"""Servers that have a name in `tidemark/config.toml`, and the files with their tokens:

[profiles.prod]
url = "https://streams.example.com"
token_file = "prod.token"
"""

from __future__ import annotations

import os
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

DEFAULT_URL: Final = "http://127.0.0.1:4437"


class Profile(NamedTuple):
    """`token_file` is a path, relative to `folder`; empty for no token."""

    url: str = DEFAULT_URL
    token_file: str = ""
    folder: Path = Path()

    def load_token(self) -> str:
        """Raises UsageError if the file is empty, or others may read it."""
        if not self.token_file:
            return ""
        try:
            file = self.folder / Path(self.token_file).expanduser()
            mode, token = file.stat().st_mode, file.read_text("utf-8-sig").strip()
        except (OSError, RuntimeError, ValueError) as failed:
            raise click.UsageError(f"token_file {self.token_file!r} cannot be read: {failed}") from None
        if os.name == "posix" and mode & 0o077:
            raise click.UsageError(f"others may read the token in {file}: run chmod 600 {file}")
        return checked_token(token, f"the token file {file}")


def load_profile(name: str | None) -> Profile:
    """Return the profile of that name; without a name `default`, or a local server if there is none. Raises
    UsageError."""
    known: dict[str, Any] = {}
    file = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config", "tidemark/config.toml")
    try:
        with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home.
            file = file.expanduser()
            known = dict(tomllib.loads(file.read_text("utf-8-sig")).get("profiles", {}))
    except (TypeError, ValueError) as wrong:
        raise click.UsageError(f"{file} is not TOML with [profiles.NAME]: {wrong}") from None
    if name is None and "default" not in known:
        return Profile()
    match known.get(name or "default"):
        case {"url": str(url), **more} if not more.keys() - {"token_file"}:
            return Profile(checked_url(url, str(file)), str(more.get("token_file", "")), file.parent)
    raise click.UsageError(
        f'{file} needs [profiles.{name or "default"}] with url = "https://…" and at most token_file = "…"; '
        f"the profiles in it: {', '.join(known) or 'none'}"
    )


def checked_token(token: str, place: str) -> str:
    """Raises UsageError for an empty token, which would silently send requests without a token."""
    if not token.strip():
        raise click.UsageError(f"{place} is empty: it must have a token, or be left out")
    return token


def checked_url(url: str, place: str) -> str:
    """Raises UsageError for a bad URL; `place` names the origin of the URL."""
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"{place}: {url!r} is not the URL of a server (https://… or http://…)")
    return url
