"""Shared by all commands: the server, the errors, the options for server and output, and the completion of
names in shells. `tidemark/config.toml` names servers, and the files with their tokens:

[profiles.prod]
url = "https://streams.example.com"
token_file = "prod.token"
"""

from __future__ import annotations

import os
import re
import sqlite3
import sys
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import click
import httpx
from click import shell_completion as shells

from tidemark.cli.terminal import visible
from tidemark.client import NotAllowed, NotFound, Retry, Server, StreamError, Unreachable
from tidemark.client.server import listing_of
from tidemark.protocol.errors import ProtocolError

EPILOG: Final = (
    "Example: tidemark tail chat/42\n\n"
    "Exit codes: 0 done; 1 refused, no answer, or wrong input; 2 wrong usage; 130 ended with Ctrl-C."
)
#: Six to eight seconds of retries: enough for a restart of the server, and short for a mistyped address.
PATIENCE: Final = Retry(max_retries=6)
#: ValueError: an argument cannot be sent. ProtocolError: an answer is not JSON.
FAILURES: Final = (StreamError, ValueError, OSError, ProtocolError, httpx.InvalidURL, sqlite3.Error)
_COMPLETION_SECONDS: Final = 1.0
DEFAULT_URL: Final = "http://127.0.0.1:4437"
_HELP: Final = {
    "token": "A bearer token (or TIDEMARK_TOKEN, which goes to the server of TIDEMARK_URL alone).",
    "url": f"The server (or TIDEMARK_URL, or {DEFAULT_URL}).",
    "profile": "A server in ~/.config/tidemark/config.toml. --url and --token win over it; it wins over "
    "TIDEMARK_URL and TIDEMARK_TOKEN, and they win over the profile `default`.",
}
_COMPLETED_NAMES: Final = "100"


class RemoteServer(Server):
    """A server and its token, which with `token_home` is sent only to the origin of that URL."""

    def __init__(
        self, url: str, token: str = "", token_home: str | None = None, retry: Retry = PATIENCE
    ) -> None:
        self.token, self.token_home, self.retry = token, token_home, retry
        self.withholds_token = bool(token and token_home and origin_of(url) != origin_of(token_home))
        self.headers = {"Authorization": f"Bearer {token}"} if token and not self.withholds_token else {}
        super().__init__(url, headers=self.headers, retry=retry)

    def serving(self, stream: str) -> RemoteServer:
        """Return the server of a stream: this one, unless the stream's URL names another."""
        parts = urlsplit(stream)
        if not parts.netloc or stream.startswith(f"{self.url}/"):
            return self
        return RemoteServer(f"{parts.scheme}://{parts.netloc}", self.token, self.token_home, self.retry)


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


def server_of(
    url: str | None = None, token: str | None = None, profile: str | None = None, retry: Retry = PATIENCE
) -> RemoteServer:
    """Return the server. Precedence: options, the profile named by `profile`, the environment, the profile
    `default`. A profile's token is for its own server; the environment's token is for TIDEMARK_URL."""
    known, environment = load_profile(profile), {} if profile else os.environ
    home = environment.get("TIDEMARK_URL") or None
    url = url or (checked_url(home, "TIDEMARK_URL") if home else known.url)
    if token is not None:
        return RemoteServer(url, token, retry=retry)
    if (held := environment.get("TIDEMARK_TOKEN")) is not None:
        return RemoteServer(url, checked_token(held, "TIDEMARK_TOKEN"), home or url, retry)
    return RemoteServer(url, known.load_token(), known.url, retry)


def origin_of(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


class Commands(click.Group):
    """Shows refusals and timeouts as one-line errors, without control characters."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(130) from None  # The exit code of shells for Ctrl-C.
        except NotFound as missing:
            raise click.ClickException(visible(_missing_text(ctx, missing))) from None
        except BrokenPipeError:
            raise  # click ends silently: the reader of the output is gone.
        except FAILURES as failed:
            raise click.ClickException(visible(failure_text(failed))) from None
        except ImportError as missing:  # httpx names the package that a proxy needs.
            install = "install tidemark-streams[server], or [aws] for a stack"
            text = f"{missing.name} is missing: {install}" if missing.name else str(missing)
            raise click.ClickException(text) from missing
        except (AttributeError, RuntimeError):
            if sys.stdin is not None and sys.stdout is not None:
                raise
            raise click.ClickException("The standard input or output is closed") from None


def failure_text(failed: BaseException) -> str:
    """Return the text of a refusal; with no answer, also the proxy that the request used."""
    text = str(failed)
    if not isinstance(failed, Unreachable):
        return text
    found, proxies = re.search(r"(https?)://([^/]*)", text), getproxies()
    proxy = found and (proxies.get(found[1]) or proxies.get("all"))
    if found and proxy and not proxy_bypass(found[2]):
        text += f"; the request went to the proxy of the environment, {proxy.rpartition('@')[2]}"
    return f"The server does not answer: {text}"


def _missing_text(ctx: click.Context, missing: NotFound) -> str:
    stream = ctx.meta.get("stream")
    if stream is None:
        return str(missing)
    text = f"there is no such stream: {stream} ({missing})"
    if ctx.invoked_subcommand in {"append", "cat", "tail"}:
        text += f"; create it with `tidemark create {stream}`"
    return text


def _remember(ctx: click.Context, _: click.Parameter, stream: str) -> str:
    ctx.meta["stream"] = stream
    return stream


def complete_stream(ctx: click.Context, _: click.Parameter, begun: str) -> list[shells.CompletionItem[str]]:
    """Return names on the server of the preceding options; no names if the server does not answer."""
    path, prefix, before = listing_of(begun)
    try:
        server = server_of(**ctx.meta.get("server", {}))
        reply = httpx.get(
            server.url + path,
            params={"prefix": prefix, "limit": _COMPLETED_NAMES},
            headers=server.headers,
            timeout=_COMPLETION_SECONDS,
        )
        names = [before + each["stream_id"] for each in reply.json()["streams"]]
    except (click.UsageError, httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return []
    return [shells.CompletionItem(name) for name in names if name.isprintable()]


STREAM: Final = click.argument("stream", callback=_remember, shell_complete=complete_stream)

#: A word of a command line up to the cursor, where a quote may still be open.
_WORD: Final = re.compile(r"""(?:[^\s'"\\]|\\.|\\$|'[^']*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|\\?$))+""")
_QUOTE: Final = re.compile(r"""\\.|'[^']*'|"(?:[^"\\]|\\.)*"|(['"])""")
#: How a text is written behind an open quote, or without one.
_ESCAPED: Final[Mapping[str, Callable[[str], str]]] = {
    "'": lambda text: text.replace("'", r"'\''"),
    '"': lambda text: re.sub(r'(["$`\\])', r"\\\1", text).replace("!", "\"'!'\""),
    "": lambda text: re.sub(r"([^\w./:@%+=,-])", r"\\\1", text),
}


@shells.add_completion_class
class QuotingBash(shells.BashComplete):
    """Completes whole words, where click completes the part behind a `:` or `=`; quotes the rest of each
    name, because bash inserts a completion as it is."""

    source_template = """\
%(complete_func)s() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            *) COMPREPLY+=("${line#*,}") ;;
        esac
    done < <(COMP_LINE=${COMP_LINE:0:COMP_POINT} COMP_TEXT=$2 %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        line, replaced = os.environ["COMP_LINE"], os.environ["COMP_TEXT"]
        words = [*_WORD.finditer(line)]
        start = words[-1].start() if words and words[-1].end() == len(line) else len(line)
        #: Bash replaces the text behind a character of COMP_WORDBREAKS, or behind an open quote.
        self._kept = line[start:].removesuffix(replaced)
        return shells.split_arg_string(line[:start])[1:], "".join(shells.split_arg_string(line[start:]))

    def format_completion(self, item: shells.CompletionItem[str]) -> str:
        quote = next((found[1] for found in _QUOTE.finditer(self._kept) if found[1]), "")
        left = item.value.removeprefix("".join(shells.split_arg_string(self._kept)))
        escaped = _ESCAPED[quote](left)
        # Bash closes the quote, but for a word that ends with one.
        return f"{item.type},{escaped}{quote if quote and escaped.endswith(quote) else ''}"


@shells.add_completion_class
class CommaFish(shells.FishComplete):
    """Takes a name with a comma whole."""

    source_template = shells.FishComplete.source_template.replace('split "," ', 'split --max 1 "," ')


SHELLS: Final = {"bash": QuotingBash, "zsh": shells.ZshComplete, "fish": CommaFish}


def use_server(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    """Store an option. An option behind the command overrides one before the command."""
    if value is not None:
        if option.name == "url":
            checked_url(value, "--url")
        if option.name == "token":
            checked_token(value, "--token")
        ctx.meta.setdefault("server", {})[option.name] = value


PRINTS_JSON: Final = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=lambda ctx, _, value: ctx.meta.update(as_json=value or ctx.meta.get("as_json")),
    help="Print JSON, one value a line.",
)


def with_server_options(command: Callable[..., None], text: Mapping[str, str] = _HELP) -> Callable[..., None]:
    for name, about in text.items():
        command = click.option(f"--{name}", expose_value=False, callback=use_server, help=about)(command)
    return command


def asks_a_server(command: Callable[..., None]) -> Callable[..., None]:
    """Pass the server to a command, and accept the options of `tidemark` behind the command's name too
    (`tidemark ls --json`). The URL of a stream overrides the server."""

    @wraps(command)
    def given(**values: Any) -> None:
        server = server_of(**click.get_current_context().meta.get("server", {}))
        serving = server.serving(values.get("stream", ""))
        try:
            command(serving, **values)
        except NotAllowed as refused:
            if not serving.withholds_token:
                raise
            text = f"{refused}; the token is for {server.token_home} alone: give --token"
            raise click.ClickException(visible(text)) from None

    return PRINTS_JSON(with_server_options(given, dict.fromkeys(_HELP, "As before the command.")))
