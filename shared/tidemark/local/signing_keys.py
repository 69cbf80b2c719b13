"""`python -m tidemark.local.signing_keys`: `tidemark.ops.signing_keys` on the data directory of `make run`.

The server must be stopped: one process at a time holds the directory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from tidemark.local.configuration import InvalidConfiguration, LocalConfiguration
from tidemark.local.engines import LocalServices
from tidemark.local.lock import DataDirectoryInUse
from tidemark.local.process import EngineFailed
from tidemark.ops import signing_keys
from tidemark.settings import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        data_dir = LocalConfiguration.from_environment(os.environ).data_dir
        table_name = Settings.from_environment(os.environ).table_name
        with LocalServices(data_dir, only=["dynamodb"]) as services:
            if not services.durable:
                print(
                    "Without dynoxide nothing is kept on disk, so there are no keys to change",
                    file=sys.stderr,
                )
                return 1
            os.environ |= services.environment | {"TABLE_NAME": table_name}
            os.environ.setdefault("WEBHOOK_KEYS", str(data_dir / "webhook-keys"))
            services.create_table(table_name)
            return signing_keys.main(arguments)
    except (DataDirectoryInUse, EngineFailed, InvalidConfiguration, OSError) as failure:
        print(failure, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
