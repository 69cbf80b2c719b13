"""What all commands share: their errors, and the options that say which server and how to print."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, Final

import click

from tidemark.client import NotFound, StreamError, Unreachable
from tidemark.ops.completion import complete_stream
from tidemark.ops.terminal import visible

EXIT_CODES: Final = (
    "Exit codes: 0 done; 1 refused, no answer, or wrong input; 2 wrong usage; 130 ended with Ctrl-C."
)


class Commands(click.Group):
    """Shows a server's refusal, or its silence, as a one-line error, which must not steer a terminal."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(130) from None  # As a shell counts it.
        except Unreachable as failed:
            raise click.ClickException(visible(f"The server does not answer: {failed}")) from None
        except NotFound as missing:
            raise click.ClickException(visible(_told(ctx, missing))) from None
        # ValueError: what was given cannot be sent.
        except (StreamError, ValueError, FileNotFoundError, IsADirectoryError, PermissionError) as failed:
            raise click.ClickException(visible(str(failed))) from None
        except ModuleNotFoundError as missing:
            raise click.ClickException(
                f"{missing.name} is missing: install tidemark-streams[server], or [aws] for a stack"
            ) from missing


def _told(ctx: click.Context, missing: NotFound) -> str:
    stream = ctx.meta.get("stream")
    if stream is None:
        return str(missing)
    hint = (
        f"; create it with `tidemark create {stream}`"
        if ctx.invoked_subcommand in {"append", "cat", "tail"}
        else ""
    )
    return f"there is no such stream: {stream} ({missing}){hint}"


def _remember(ctx: click.Context, _: click.Parameter, stream: str) -> str:
    ctx.meta["stream"] = stream
    return stream


STREAM: Final = click.argument("stream", callback=_remember, shell_complete=complete_stream)


def checked_url(_: click.Context, __: click.Parameter, url: str | None) -> str | None:
    if url is not None and not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} is not the URL of a server; one begins with http:// or https://")
    return url


def _use_json(ctx: click.Context, _: click.Parameter, *, as_json: bool) -> None:
    ctx.meta["as_json"] |= as_json


def _use_server(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    if option.name == "url":
        checked_url(ctx, option, value)
    if value is not None:
        ctx.obj = replace(ctx.obj, **{str(option.name): value})


PRINTS_JSON: Final = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=lambda ctx, option, value: _use_json(ctx, option, as_json=value),
    help="Print JSON, one value a line.",
)


def asks_a_server(command: Callable[..., None]) -> Callable[..., None]:
    """The options of `tidemark` also count behind a command's name: `tidemark ls --json`. A stream's URL
    names the server itself."""

    @wraps(command)
    def given(**values: Any) -> None:
        server = click.get_current_context().obj
        command(server.serving(values.get("stream", "")), **values)

    for name in ("--token", "--url"):
        option = click.option(name, expose_value=False, callback=_use_server, help="As before the command.")
        given = option(given)
    return PRINTS_JSON(given)
