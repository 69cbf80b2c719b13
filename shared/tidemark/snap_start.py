"""SnapStart: environments that Lambda resumes from a snapshot of one that has started.

All that are resumed from one snapshot begin with the same memory, some of them weeks later. What must
not be in it is made when it is first needed: connections, keys, the values of parameters. The role's
credentials are in it, and expire: without AWS_ACCESS_KEY_ID in the environment, `aws/account.py` lets
botocore fetch new ones. Names and marks come from the operating system's random numbers (`secrets`),
which are never the same twice. The rest is `on_restore`.
"""

from __future__ import annotations

import importlib
import os
import random
import ssl


def on_restore() -> None:
    """Other random numbers in each environment: for pauses before retries, which would otherwise be the same
    everywhere, and for OpenSSL, which draws the keys of a connection from a state of its own."""
    random.seed()
    ssl.RAND_add(os.urandom(64), 64.0)


def register_restore() -> None:
    """Let Lambda call `on_restore`. Does nothing in an environment that is not made from a snapshot."""
    if os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == "snap-start":
        # A part of Lambda's Python runtime.
        importlib.import_module("snapshot_restore_py").register_after_restore(on_restore)
