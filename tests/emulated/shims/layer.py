"""The layer on this machine. It is built for Lambda's processor and Python; what is compiled in it cannot run
here. The same versions, as they are installed for this machine, stand in front of it; nothing else does: the
functions' processes see neither the project nor what is installed beside it.

A layer is also unpacked once and not for every process: Lambda mounts it and does not copy it.
"""

from __future__ import annotations

import compileall
import hashlib
import io
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

from ministack.core import lambda_runtime
from ministack.services import lambda_svc

from tests.emulated.shims.names import replace

#: In a layer's place: names the directory that the layer was unpacked into.
POINTER = "unpacked-into"

#: Before the emulator's own worker script. `-I -S` keeps PYTHONPATH, the user's and the site's packages out.
PREFIX = """
import os as _os
_dirs = [d for d in _os.environ.get("_LAMBDA_LAYERS_DIRS", "").split(_os.pathsep) if d]
_to = [_os.path.join(d, "unpacked-into") for d in _dirs]
_dirs = [open(to).read() if _os.path.exists(to) else d for d, to in zip(_dirs, _to)]
_os.environ["_LAMBDA_LAYERS_DIRS"] = _os.pathsep.join([*_dirs, __NATIVES__])
"""

LAUNCHER = """#!/bin/sh
exec {python} -I -S -B -X utf8 "$@"
"""


def install(directory: Path) -> None:
    natives = directory / "natives"
    (natives / "python").mkdir(parents=True, exist_ok=True)
    launcher = directory / "python"
    launcher.write_text(LAUNCHER.format(python=sys.executable))
    launcher.chmod(0o755)
    resolve = lambda_svc._resolve_layer_zip
    unpacked: dict[str, bytes] = {}

    def resolve_unpacked(attachment: Any) -> bytes | None:
        content = resolve(attachment)
        if content is None:
            return None
        digest = hashlib.sha256(content).hexdigest()[:16]
        if digest not in unpacked:
            unpacked[digest] = pointer_to(unpack(content, directory / digest, natives / "python"))
        return unpacked[digest]

    replace(lambda_svc, "_resolve_layer_zip", resolve_unpacked)
    detect = lambda_runtime._detect_runtime_binary

    def detect_isolated(runtime: str) -> tuple[str, str]:
        binary, script = detect(runtime)
        if not runtime.startswith("python"):
            return binary, script
        return str(launcher), PREFIX.replace("__NATIVES__", repr(str(natives))) + script

    replace(lambda_runtime, "_detect_runtime_binary", detect_isolated)


def unpack(content: bytes, target: Path, natives: Path) -> Path:
    """Returns `target`, in which the layer and its bytecode for this Python then are."""
    with zipfile.ZipFile(io.BytesIO(content)) as layer:
        layer.extractall(target)
    compileall.compile_dir(target, quiet=2, workers=1)
    link_natives(target / "python", natives)
    return target


def link_natives(layer: Path, natives: Path) -> None:
    """Links the packages of `layer` that are compiled, as installed for this machine, into `natives`."""
    compiled = {path.relative_to(layer).parts[0].split(".")[0] for path in layer.rglob("*.so")}
    for found in Path(sysconfig.get_path("platlib")).iterdir():
        link = natives / found.name
        if found.name.split(".")[0] in compiled and not link.exists():
            link.symlink_to(found)


def pointer_to(directory: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(POINTER, str(directory))
    return buffer.getvalue()
