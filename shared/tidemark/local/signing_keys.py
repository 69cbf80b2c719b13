"""`python -m tidemark.local.signing_keys`: `tidemark.ops.signing_keys` on the data directory of `make run`.

The server must be stopped: one process at a time holds the directory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tidemark.engine.database import Database
from tidemark.engine.sqlite_file import UnusableDatabase
from tidemark.engine.table import EmbeddedTable
from tidemark.local.engines import LocalServices
from tidemark.local.process import EngineFailed
from tidemark.ops import signing_keys
from tidemark.server.configuration import InvalidConfiguration, LocalConfiguration, Via
from tidemark.server.lock import DataDirectoryInUse, DirectoryLock
from tidemark.settings import Settings
from tidemark.subscriptions.signing_keys import FolderKeys, SigningKeys


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        configuration = LocalConfiguration.from_environment(os.environ)
        change = _change if configuration.via is Via.ASGI else _change_of_handlers
        return change(configuration.data_dir, arguments)
    except (DataDirectoryInUse, EngineFailed, InvalidConfiguration, OSError, UnusableDatabase) as failure:
        print(failure, file=sys.stderr)
        return 1


def _change(data_dir: Path, arguments: Sequence[str] | None) -> int:
    lock = DirectoryLock(data_dir)
    lock.acquire()
    try:
        table = EmbeddedTable(Database(data_dir / "tidemark.db"))
        return signing_keys.main(arguments, SigningKeys(table, FolderKeys(data_dir / "webhook-keys")))
    finally:
        lock.release()


def _change_of_handlers(data_dir: Path, arguments: Sequence[str] | None) -> int:
    table_name = Settings.from_environment(os.environ).table_name
    with LocalServices(data_dir / "lambda", only=["dynamodb"]) as services:
        os.environ |= services.environment | {"TABLE_NAME": table_name}
        os.environ.setdefault("WEBHOOK_KEYS", str(data_dir / "lambda" / "webhook-keys"))
        services.create_table(table_name)
        return signing_keys.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
