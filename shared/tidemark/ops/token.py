"""`python -m tidemark.ops.token`: a token for a system whose tokens are signed by a secret.

The secret is the first line of AUTH_SECRET in the environment, or of the SSM parameter `--secret-name`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Final

import jwt

from tidemark.settings import MIN_SECRET_BYTES

DEFAULT_SCOPES: Final = "read:v1 write:v1 manage:v1"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tidemark.ops.token", description=__doc__)
    parser.add_argument(
        "--secret-name", default="", help="name of the SSM parameter, such as /tidemark/auth-secret"
    )
    parser.add_argument("--scopes", default=DEFAULT_SCOPES, help="what the token allows (%(default)s)")
    parser.add_argument("--hours", type=float, default=1.0, help="how long it is valid (%(default)s)")
    given = parser.parse_args(arguments)
    secret = secret_from(given.secret_name) if given.secret_name else os.environ.get("AUTH_SECRET", "")
    secret = secret.split("\n", 1)[0].strip()
    if len(secret.encode()) < MIN_SECRET_BYTES:
        parser.error(
            f"the secret has {len(secret.encode())} bytes and must have {MIN_SECRET_BYTES}: "
            "set AUTH_SECRET, or give --secret-name"
        )
    claims = {"exp": int(time.time() + given.hours * 3600), "scope": given.scopes}
    print(jwt.encode(claims, secret, "HS256"))
    return 0


def secret_from(name: str) -> str:
    import boto3

    return str(boto3.client("ssm").get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"])


if __name__ == "__main__":
    sys.exit(main())
