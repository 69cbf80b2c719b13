"""`python -m tidemark.ops.signing_keys`: the keys that sign webhooks; list, rotate and remove them.

Of a deployed stack with `--stack`, and otherwise of TABLE_NAME and WEBHOOK_KEYS, as in the functions'
environment. Region and credentials are found as boto3 finds them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from tidemark.aws.account import Account
from tidemark.aws.clients import ParameterUnavailable
from tidemark.aws.dynamodb import connect_dynamodb
from tidemark.log.dynamodb_table import DynamoDBTable
from tidemark.protocol.errors import ProtocolError
from tidemark.subscriptions.signing_keys import (
    PUBLISHED_BEFORE_MS,
    SigningKeys,
    choose_signing_key,
    private_keys_at,
)


class CannotChangeKeys(Exception):
    """The message says why, and what to do."""


class KeyLocation(NamedTuple):
    """The location of the keys: the table of the public halves, and the value of WEBHOOK_KEYS."""

    table_name: str
    webhook_keys: str


def main(arguments: Sequence[str] | None = None, local: SigningKeys | None = None) -> int:
    """The process's exit code. `local` are the keys of this machine, where no stack is named."""
    parser = argparse.ArgumentParser(prog="python -m tidemark.ops.signing_keys", description=__doc__)
    parser.add_argument("--stack", default="", help="a deployed stack, by its name")
    parser.add_argument("--region", help="the stack's region, where the environment names another")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the published keys, oldest first")
    commands.add_parser("rotate", help="make and publish a new key; it signs in 15 minutes")
    remove = commands.add_parser(
        "remove", help="take a key back: nothing that it has signed is believed any more"
    )
    remove.add_argument("kid")
    given = parser.parse_args(arguments)
    try:
        keys = local or keys_of(given.stack, given.region)
        now_ms = time.time_ns() // 1_000_000
        if given.command == "rotate":
            rotate(keys, now_ms)
        elif given.command == "remove":
            remove_key(keys, given.kid)
        show(keys, now_ms)
    except (CannotChangeKeys, ParameterUnavailable, ProtocolError, RuntimeError, OSError) as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


def keys_of(stack: str, region: str | None) -> SigningKeys:
    """The keys of a stack, or those that the environment names. Raises CannotChangeKeys."""
    place = place_of_stack(stack, region) if stack else place_in_environment()
    table = DynamoDBTable(connect_dynamodb(Account(region)), place.table_name)
    return SigningKeys(table, private_keys_at(place.webhook_keys))


def place_in_environment() -> KeyLocation:
    """Raises CannotChangeKeys."""
    place = KeyLocation(os.environ.get("TABLE_NAME") or "", os.environ.get("WEBHOOK_KEYS") or "")
    if not all(place):
        raise CannotChangeKeys("Give --stack, or set TABLE_NAME and WEBHOOK_KEYS")
    return place


def place_of_stack(name: str, region: str | None) -> KeyLocation:
    """The location in the outputs of the stack. Raises CannotChangeKeys."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        [stack] = boto3.client("cloudformation", region_name=region).describe_stacks(StackName=name)["Stacks"]
    except (BotoCoreError, ClientError) as failure:
        raise CannotChangeKeys(f"The stack {name} cannot be described: {failure}") from None
    outputs = {each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", [])}
    if not {"TableName", "WebhookKeys"} <= outputs.keys():
        raise CannotChangeKeys(f"{name} is not a stack of this version of Tidemark: deploy it again first")
    return KeyLocation(outputs["TableName"], outputs["WebhookKeys"])


def rotate(keys: SigningKeys, now_ms: int) -> None:
    made = keys.rotate(now_ms)
    at = instant(made.created_ms + PUBLISHED_BEFORE_MS)
    print(f"{made.kid} is published and signs from {at} on")


def remove_key(keys: SigningKeys, kid: str) -> None:
    """Raises CannotChangeKeys."""
    published = {key.kid: key for key in keys.published()}
    if kid not in published:
        raise CannotChangeKeys(f"There is no key {kid}; list shows those that there are")
    if len(published) == 1:
        raise CannotChangeKeys(
            f"{kid} is the only key, and webhooks could not be signed without it: rotate first"
        )
    keys.remove(published[kid])
    print(f"{kid} is removed; caches may hold it for five minutes more")


def show(keys: SigningKeys, now_ms: int) -> None:
    published = keys.published()
    if not published:
        print("There is no key: the first webhook subscription makes one")
        return
    signing = choose_signing_key(published, now_ms)
    for key in published:
        print(f"{key.kid}  made {instant(key.created_ms)}{'  signs' if key == signing else ''}")


def instant(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main())
