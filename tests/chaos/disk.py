"""The disk under the engines: a file system in memory of their own, which can be full from one moment to the
next. It needs root; without it the disk is an ordinary directory that is never full."""

import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOMY: Final = "8g"


@dataclass
class Disk:
    """`lacking` says why it cannot be filled."""

    path: Path
    lacking: str | None = None

    def fill(self) -> None:
        """Not a block more can be written. What is in use may grow between the look and the remount,
        which then fails: it is looked at again."""
        for _ in range(50):
            used = shutil.disk_usage(self.path).used
            with suppress(subprocess.CalledProcessError):
                return self._resize(f"{max(used // 1024, 4)}k")
        raise RuntimeError(f"{self.path} grows faster than it can be filled")

    def empty(self) -> None:
        self._resize(ROOMY)

    def close(self) -> None:
        if self.lacking is None:
            subprocess.run(["umount", "--lazy", str(self.path)], check=False, capture_output=True)

    def _resize(self, size: str) -> None:
        if self.lacking is None:
            subprocess.run(
                ["mount", "-o", f"remount,size={size}", str(self.path)], check=True, capture_output=True
            )


def open_disk(path: Path) -> Disk:
    path.mkdir(parents=True)
    if os.geteuid() != 0:
        return Disk(path, "mounting a file system takes root")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOMY}", "tmpfs", str(path)]
    made = subprocess.run(mount, check=False, capture_output=True, text=True)
    return Disk(path, made.stderr.strip() or "mount failed" if made.returncode else None)
