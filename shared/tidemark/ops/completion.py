"""What the shell is told when it completes the name of a stream."""

from __future__ import annotations

import re
from typing import Final

import click
from click.shell_completion import CompletionItem

DEFAULT_URL: Final = "http://127.0.0.1:4437"
_SECONDS: Final = 1.0
_NAMES: Final = "100"
#: The shell puts a name into the command as it is: `$(…)` would be run.
_NEEDS_NO_QUOTES: Final = re.compile(r"[\w./:@%+=,-]+")


def complete_stream(ctx: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Names on the server of `--url` before the command, or of TIDEMARK_URL. None if it does not answer."""
    import httpx

    given = ctx.find_root().params
    bucket, slash, prefix = begun.removeprefix("/").partition("/")
    before = f"/{bucket}/" if begun.startswith("/") and slash else ""
    try:
        reply = httpx.get(
            (given.get("url") or DEFAULT_URL).rstrip("/") + (f"{before}streams" if before else "/v1/streams"),
            params={"prefix": prefix if before else begun, "limit": _NAMES},
            headers={"Authorization": f"Bearer {given['token']}"} if given.get("token") else {},
            timeout=_SECONDS,
        )
        names = [before + each["stream_id"] for each in reply.json()["streams"]]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return []
    return [CompletionItem(name) for name in names if _NEEDS_NO_QUOTES.fullmatch(name)]
