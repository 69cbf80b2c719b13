"""The built layer, ready to run on this machine: with bytecode, and with its own compiled packages."""

from __future__ import annotations

import compileall
import io
import shutil
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / ".aws-sam" / "build"
LAYER = BUILD / "SharedLayer" / "python"
FUNCTIONS = {"write": "WriteFunction", "read": "ReadFunction", "janitor": "JanitorFunction"}


@dataclass(frozen=True)
class RunnableLayer:
    """Directories that stand for `/opt/python`; the first has the packages that are compiled."""

    natives: Path
    packages: Path

    def command(self, code: str, *first: Path) -> list[str]:
        """Runs `code` with what is in `first` and in the layer, and nothing else that is installed here."""
        path = [str(directory) for directory in (*first, self.natives, self.packages)]
        return [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {path!r}\n{code}"]


def make_runnable(directory: Path) -> RunnableLayer:
    """In `directory`, which must be empty. Raises FileNotFoundError unless `make build` has been run."""
    packages, natives = directory / "packages", directory / "natives"
    shutil.copytree(LAYER, packages, ignore=shutil.ignore_patterns("__pycache__"))
    natives.mkdir()
    link_natives(natives)
    compileall.compile_dir(packages, quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    return RunnableLayer(natives, packages)


def link_natives(directory: Path) -> None:
    """The layer's compiled packages as they are installed for this machine: its own are for Lambda's."""
    names = {path.relative_to(LAYER).parts[0].split(".")[0] for path in LAYER.rglob("*.so")}
    for name in names:
        for found in Path(sysconfig.get_path("platlib")).glob(f"{name}*"):
            if found.name.split(".")[0] == name:
                (directory / found.name).symlink_to(found)


def layer_sizes() -> tuple[int, int]:
    """Bytes of the layer, unpacked and as the zip that is uploaded, without bytecode."""
    buffer, unpacked = io.BytesIO(), 0
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(LAYER.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                unpacked += path.stat().st_size
                archive.write(path, path.relative_to(LAYER.parent))
    return unpacked, buffer.tell()
