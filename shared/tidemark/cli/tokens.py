"""`tidemark token`: sign, list and revoke tokens. The list is in the table that has the streams."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tidemark.cli.commands import PRINTS_JSON, with_server_options
from tidemark.cli.terminal import instant, show, show_rows
from tidemark.protocol.authorization import parse_scopes
from tidemark.protocol.errors import ProtocolError
from tidemark.settings import MIN_SECRET_BYTES, Settings

if TYPE_CHECKING:
    from tidemark.log.schema import IssuedToken
    from tidemark.log.table import Table

_PLACES: Final = {
    "data-dir": "The folder of a server, which may run (.data, or DATA_DIR).",
    "table": "On AWS: the table that has the list.",
    "stack": "On AWS: a stack, for its table and its secret.",
}
_AT_A_PLACE: Final = partial(with_server_options, text=_PLACES)
_HOURS: Final = click.FloatRange(0, 1e6, min_open=True)


def place(*, has_default: bool = True) -> dict[str, str]:
    """The options and the outputs of the stack; without options the default folder, if it has a store."""
    from tidemark.cli.store import outputs_of_stack

    options = click.get_current_context().meta.get("server", {})
    given = {name: value for name, value in options.items() if name.replace("_", "-") in _PLACES}
    if "stack" in given:
        return outputs_of_stack(given["stack"]) | given
    folder = os.environ.get("DATA_DIR") or ".data"
    is_default = has_default and not given and Path(folder, "tidemark.db").exists()
    return {"data_dir": folder} if is_default else given


@contextmanager
def opened_table(named: dict[str, str]) -> Iterator[Table]:
    """Open the table for the block, and name the cause of a failure."""
    from tidemark.cli.store import database_of
    from tidemark.engine.database import Database
    from tidemark.engine.table import EmbeddedTable
    from tidemark.service.stores import connect

    if not named:
        raise click.UsageError("give --stack or --table on AWS, or --data-dir, the folder of a server")
    try:
        if name := named.get("table") or named.get("TableName"):
            yield connect(Settings(name)).table
            return
        database = Database(database_of(Path(named["data_dir"])))
        click.get_current_context().call_on_close(database.close)
        yield EmbeddedTable(database)
    except ProtocolError as failed:
        raise click.ClickException(f"The list of tokens: {failed.__cause__ or failed.message}") from None


@click.group(invoke_without_command=True, epilog="Example: tidemark token --scopes read:v1/chat/* --hours 8")
@_AT_A_PLACE
@click.option("--secret-name", help="The SSM parameter with the secret, such as /tidemark/STACK/auth-secret.")
@click.option("--scopes", default="read:v1 write:v1 manage:v1", show_default=True)
@click.option("--subject", default="", help="The user or program that gets the token.")
@click.option("--hours", type=_HOURS, default=1.0, show_default=True, help="Its lifetime.")
@click.pass_context
def token(ctx: click.Context, secret_name: str | None, scopes: str, subject: str, hours: float) -> None:
    """Print a token, signed by the first line of the secret in AUTH_SECRET, of --secret-name or of --stack.
    The list gets its id."""
    if ctx.invoked_subcommand:
        return
    import jwt

    from tidemark.log.schema import TOKENS_PK, IssuedToken, encode_token

    words = scopes.split()
    if wrong := [word for word in words or [""] if not parse_scopes(word).grants]:
        raise click.UsageError(f"{wrong[0]!r} is not a scope; one is read:v1, write:v1/chat/* or manage:*")
    named = place(has_default=not secret_name)
    secret = load_secret(secret_name or named.get("TokenSecretName"))
    expires = int(time.time() + hours * 3600)
    issued = IssuedToken(secrets.token_hex(8), subject, scopes, 1000 * expires)
    if named:
        with opened_table(named) as table:
            table.put(encode_token(TOKENS_PK, issued))
    else:
        click.echo(f"Token {issued.id} is in no list: give --stack, --table or --data-dir", err=True)
    claims = {"exp": expires, "scope": scopes, "jti": issued.id} | ({"sub": subject} if subject else {})
    click.echo(jwt.encode(claims, secret, "HS256"))


def load_secret(name: str | None) -> str:
    """Return the first line of the parameter, or of AUTH_SECRET. Raises UsageError, ParameterUnavailable."""
    from tidemark.aws.clients import load_parameter

    lines = load_parameter(name) if name else os.environ.get("AUTH_SECRET", "")
    secret = lines.split("\n", 1)[0].strip()
    if (size := len(secret.encode())) >= MIN_SECRET_BYTES:
        return secret
    text = f"the secret has {size} bytes and must have {MIN_SECRET_BYTES}: set AUTH_SECRET, or give"
    raise click.UsageError(f"{text} --secret-name or --stack")


def listed_in(table: Table, pk: str) -> dict[str, IssuedToken]:
    from tidemark.http.security.keys import tokens_in

    return {each.id: each for each in tokens_in(table, pk)}


@token.command("list", epilog="Example: tidemark token list --stack prod --subject anna")
@_AT_A_PLACE
@PRINTS_JSON
@click.option("--subject", default="", help="Only tokens whose subject begins with this.")
def list_tokens(subject: str) -> None:
    """List the tokens that have not expired, and the ids that are revoked."""
    from tidemark.log.schema import REVOKED_PK, TOKENS_PK

    with opened_table(place()) as table:
        revoked = listed_in(table, REVOKED_PK)
        known = revoked | listed_in(table, TOKENS_PK)
    rows = [
        each._asdict() | {"revoked": each.id in revoked}
        for each in sorted(known.values(), key=lambda each: each.expires_at_ms)
        if each.expires_at_ms > time.time() * 1000 and each.subject.startswith(subject)
    ]

    def cells(row: dict[str, Any], *_: object) -> list[str]:
        state, ends = "revoked" if row["revoked"] else "valid", instant(row["expires_at_ms"])
        return [row["id"], row["subject"] or "-", state, ends, row["scopes"] or "-"]

    show_rows(rows, ("ID", "SUBJECT", "STATE", "EXPIRES", "SCOPES"), cells)


@token.command(epilog="Example: tidemark token revoke 4f2a9c --stack prod")
@_AT_A_PLACE
@PRINTS_JSON
@click.argument("token_id", metavar="ID")
@click.option("--hours", type=_HOURS, help="Of a token that is not in the list: its longest lifetime.")
def revoke(token_id: str, hours: float | None) -> None:
    """Refuse a token from now on, by its id in the list or its claim jti."""
    from tidemark.log.schema import REVOKED_PK, TOKENS_PK, IssuedToken, encode_token

    with opened_table(place()) as table:
        listed = listed_in(table, TOKENS_PK)
        if token_id not in listed and hours is None:
            raise click.UsageError(f"{token_id} is not in the list: give --hours, its longest lifetime")
        expires_at_ms = int(1000 * (time.time() + 3600 * (hours or 0)))
        found = listed.get(token_id) or IssuedToken(token_id[:256], "", "", expires_at_ms)
        table.put(encode_token(REVOKED_PK, found))
    text = f"{token_id} is revoked; in a minute every server refuses the token"
    show(found._asdict() | {"revoked": True}, text)
