"""`python -m tidemark.ops.signing_keys`: list, rotate and remove the keys that sign webhooks.

The keys belong to a deployed stack (`--stack`), to the folder of a stopped server (`--data-dir`), or to
TABLE_NAME and WEBHOOK_KEYS, as in the functions' environment. Region and credentials are found as in boto3.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tidemark.aws.dynamodb import connect_dynamodb
from tidemark.aws.http import Account
from tidemark.cli.store import database_of, outputs_of_stack
from tidemark.cli.terminal import instant
from tidemark.engine.database import Database
from tidemark.engine.table import EmbeddedTable
from tidemark.log.dynamodb_table import DynamoDBTable
from tidemark.protocol.errors import ProtocolError
from tidemark.server.ports import locked
from tidemark.subscriptions import signing_keys


class CannotChangeKeys(Exception):
    """The message states the reason and the remedy."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the process's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tidemark.ops.signing_keys", description=__doc__)
    parser.add_argument("--stack", help="a deployed stack, by its name")
    parser.add_argument("--region", help="the stack's region, where the environment names another")
    parser.add_argument("--data-dir", type=Path, help="the folder of a server that is stopped")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the published keys, oldest first")
    commands.add_parser("rotate", help="make and publish a new key; it signs in 15 minutes")
    remove = commands.add_parser(
        "remove", help="take a key back: nothing that it has signed is believed any more"
    )
    remove.add_argument("kid")
    given = parser.parse_args(arguments)
    try:
        with ExitStack() as held:
            change(signing_keys_of(given, held), given)
    # OSError: there are no credentials, or a server has locked the folder.
    except (CannotChangeKeys, OSError, ProtocolError) as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


def change(keys: signing_keys.SigningKeys, given: argparse.Namespace) -> None:
    """Run the command. Raises CannotChangeKeys."""
    now_ms = time.time_ns() // 1_000_000
    if given.command == "rotate":
        rotate(keys, now_ms)
    elif given.command == "remove":
        remove_key(keys, given.kid)
    show_keys(keys, now_ms)


def signing_keys_of(given: argparse.Namespace, held: ExitStack) -> signing_keys.SigningKeys:
    """Return the keys; `held` unlocks the folder. Raises CannotChangeKeys, DataDirectoryInUse, NoStore."""
    if given.data_dir:
        database = database_of(given.data_dir)
        held.enter_context(locked(given.data_dir))
        folder = signing_keys.FolderKeys(given.data_dir / "webhook-keys")
        return signing_keys.SigningKeys(EmbeddedTable(Database(database)), folder)
    if given.stack:
        outputs = outputs_of_stack(given.stack, given.region)
        if "WebhookKeys" not in outputs:
            text = "is not a stack of this version of Tidemark: deploy it again first"
            raise CannotChangeKeys(f"{given.stack} {text}")
        table_name, webhook_keys = outputs["TableName"], outputs["WebhookKeys"]
    else:
        table_name, webhook_keys = (os.environ.get(name) or "" for name in ("TABLE_NAME", "WEBHOOK_KEYS"))
    if not (table_name and webhook_keys):
        raise CannotChangeKeys("Give --stack or --data-dir, or set TABLE_NAME and WEBHOOK_KEYS")
    table = DynamoDBTable(connect_dynamodb(Account(given.region)), table_name)
    return signing_keys.SigningKeys(table, signing_keys.private_keys_at(webhook_keys))


def rotate(keys: signing_keys.SigningKeys, now_ms: int) -> None:
    made = keys.rotate(now_ms)
    at = instant(made.created_ms + signing_keys.PUBLISHED_BEFORE_MS)
    print(f"{made.kid} is published and signs from {at} on")


def remove_key(keys: signing_keys.SigningKeys, kid: str) -> None:
    """Remove a key. Raises CannotChangeKeys."""
    published = {key.kid: key for key in keys.published()}
    if kid not in published:
        raise CannotChangeKeys(f"There is no key {kid}; list shows those that there are")
    if len(published) == 1:
        raise CannotChangeKeys(
            f"{kid} is the only key, and webhooks could not be signed without it: rotate first"
        )
    keys.remove(published[kid])
    print(f"{kid} is removed; caches may hold it for five minutes more")


def show_keys(keys: signing_keys.SigningKeys, now_ms: int) -> None:
    published = keys.published()
    if not published:
        print("There is no key: the first webhook subscription makes one")
        return
    signing = signing_keys.choose_signing_key(published, now_ms)
    for key in published:
        print(f"{key.kid}  made {instant(key.created_ms)}{'  signs' if key == signing else ''}")


if __name__ == "__main__":
    sys.exit(main())
