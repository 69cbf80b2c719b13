"""Shared by all commands: the server, the errors, the options for server and output, and the completion of
names in shells."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Final, TypeVar, Unpack
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import click
import httpx
from click import shell_completion as shells

from tidemark.cli.profiles import DEFAULT_URL, checked_token, checked_url, load_profile
from tidemark.cli.terminal import visible
from tidemark.client import MalformedReply, NotAllowed, NotFound, Retry, Stream, StreamError, Unreachable
from tidemark.client.blocking import BlockingDriver
from tidemark.client.core import CreateOptions
from tidemark.client.exchange import LARGEST_REPLY_BYTES, Reply, Request, Steps, exchange
from tidemark.protocol.errors import ProtocolError

_T = TypeVar("_T")

EXIT_CODES: Final = (
    "Exit codes: 0 done; 1 refused, no answer, or wrong input; 2 wrong usage; 130 ended with Ctrl-C."
)
#: Six to eight seconds of retries: enough for a restart of the server, and short for a mistyped address.
PATIENCE: Final = Retry(max_retries=6)
#: ValueError: an argument cannot be sent. ProtocolError: an answer is not JSON.
FAILURES: Final = (StreamError, ValueError, OSError, ProtocolError, httpx.InvalidURL, sqlite3.Error)
_COMPLETION_SECONDS: Final = 1.0
STREAM_ROOT: Final = "/v1/stream/"
_HELP: Final = {
    "token": "A bearer token (or TIDEMARK_TOKEN, which goes to the server of TIDEMARK_URL alone).",
    "url": f"The server (or TIDEMARK_URL, or {DEFAULT_URL}).",
    "profile": "A server in ~/.config/tidemark/config.toml. --url and --token win over it; it wins over "
    "TIDEMARK_URL and TIDEMARK_TOKEN, and they win over the profile `default`.",
}
_COMPLETED_NAMES: Final = "100"


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """A server and its token. `token` is sent in the Authorization header unless empty, and with `token_home`
    only to the origin of that URL. All requests raise StreamError."""

    url: str
    token: str = ""
    token_home: str | None = None
    retry: Retry = PATIENCE

    @property
    def withholds_token(self) -> bool:
        return bool(self.token and self.token_home and origin_of(self.url) != origin_of(self.token_home))

    @property
    def headers(self) -> dict[str, str]:
        sends = self.token and not self.withholds_token
        return {"Authorization": f"Bearer {self.token}"} if sends else {}

    def serving(self, stream: str) -> RemoteServer:
        """Return the server of a stream: this one, unless the stream's URL names another."""
        parts = urlsplit(stream)
        if not parts.netloc or stream.startswith(f"{self.url.rstrip('/')}/"):
            return self
        return replace(self, url=f"{parts.scheme}://{parts.netloc}")

    def stream_url(self, stream: str) -> str:
        base = self.url.rstrip("/")
        return stream.partition("?")[0] if stream.startswith(f"{base}/") else base + stream_path(stream)

    def stream(self, stream: str) -> Stream:
        return Stream(self.stream_url(stream), headers=self.headers, retry=self.retry)

    def create(self, stream: str, content_type: str | None, **creation: Unpack[CreateOptions]) -> Stream:
        url = self.stream_url(stream)
        return Stream.create(
            url, content_type=content_type, headers=self.headers, retry=self.retry, **creation
        )

    def run(self, steps: Steps[_T]) -> _T:
        return BlockingDriver(None, self.headers, {}).run(steps)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        *,
        max_bytes: int = LARGEST_REPLY_BYTES,
    ) -> Reply:
        url = self.url.rstrip("/") + path
        request = Request(method, url, headers or {}, params or {}, body, max_bytes=max_bytes)
        return self.run(exchange(request, self.retry))

    def get(self, path: str, **query: str) -> Any:
        """Return the JSON of an answer."""
        body = self.ask("GET", path, params=query).body
        try:
            return json.loads(body)
        except ValueError as wrong:
            raise MalformedReply(f"GET {path}: the answer is not JSON; is this a Tidemark?") from wrong

    def pages(self, path: str, name: str, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the entries of all pages of a listing."""
        after: str | None = ""
        while after is not None:
            page = self.get(path, **query, **({"after": after} if after else {}))
            yield from page[name]
            after = page["next_cursor"] if page["has_more"] else None


def server_of(url: str | None = None, token: str | None = None, profile: str | None = None) -> RemoteServer:
    """Return the server. Precedence: options, the profile named by `profile`, the environment, the profile
    `default`. A profile's token is for its own server; the environment's token is for TIDEMARK_URL."""
    known, environment = load_profile(profile), {} if profile else os.environ
    home = environment.get("TIDEMARK_URL") or None
    url = url or (checked_url(home, "TIDEMARK_URL") if home else known.url)
    if token is not None:
        return RemoteServer(url, token)
    if (held := environment.get("TIDEMARK_TOKEN")) is not None:
        return RemoteServer(url, checked_token(held, "TIDEMARK_TOKEN"), home or url)
    return RemoteServer(url, known.load_token(), known.url)


def origin_of(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def stream_path(stream: str) -> str:
    """Return the path of a stream, from its URL, its path, or the name of a plain stream."""
    if {".", ".."} & {*stream.split("/")}:
        # URL normalization would remove the dots, and the path would be another stream's.
        raise ValueError(f"{stream!r} must not have '.' or '..' between slashes")
    if "://" in stream:
        return urlsplit(stream).path
    return stream if stream.startswith("/") else STREAM_ROOT + quote(stream)


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
            server.url.rstrip("/") + path,
            params={"prefix": prefix, "limit": _COMPLETED_NAMES},
            headers=server.headers,
            timeout=_COMPLETION_SECONDS,
        )
        names = [before + each["stream_id"] for each in reply.json()["streams"]]
    except (click.UsageError, httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return []
    return [shells.CompletionItem(name) for name in names if name.isprintable()]


def listing_of(begun: str) -> tuple[str, str, str]:
    """Return, for the beginning of a name or path, the path of the listing, the prefix of the ids, and the
    part of a stream's path before its id."""
    bucket, slash, prefix = begun.removeprefix("/").partition("/")
    if begun.startswith("/") and slash:
        return f"/{bucket}/streams", prefix, f"/{bucket}/"
    return "/v1/streams", begun, ""


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
