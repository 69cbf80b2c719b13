"""Copies the console's libraries from `node_modules` (what `package-lock.json` pins) into the package.

    python console/vendor.py

Browsers load them as they are. Their names for each other become paths, because a page without inline script
has no import map. `tests/infra/test_console_files.py` compares the copies with the lock.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
MODULES: Final = ROOT / "node_modules"
STATIC: Final = ROOT / "shared" / "tidemark" / "console"

#: The name in the package, the npm package, and the file in it.
FILES: Final = {
    "preact.js": ("preact", "dist/preact.module.js"),
    "preact-hooks.js": ("preact", "hooks/dist/hooks.module.js"),
    "htm.js": ("htm", "dist/htm.module.js"),
    "signals-core.js": ("@preact/signals-core", "dist/signals-core.module.js"),
    "signals.js": ("@preact/signals", "dist/signals.module.js"),
    "durable-streams.js": ("@durable-streams/client", "dist/index.js"),
}
PATHS: Final = {
    "preact": "./preact.js",
    "preact/hooks": "./preact-hooks.js",
    "@preact/signals-core": "./signals-core.js",
}
LICENCES: Final = "licences.txt"

_IMPORT: Final = re.compile(rf"""(from\s*)(["'])({"|".join(map(re.escape, PATHS))})\2""")
_SOURCE_MAP: Final = re.compile(r"^//# sourceMappingURL=.*$\n?", re.MULTILINE)


def vendored() -> dict[str, str]:
    """The text of each file, by its name in the package."""
    made = {name: _browser_text(MODULES / package / file) for name, (package, file) in FILES.items()}
    packages = sorted({package for package, _ in FILES.values()})
    made[LICENCES] = "\n".join(_licence(package) for package in packages)
    return made


def _browser_text(file: Path) -> str:
    text = _SOURCE_MAP.sub("", file.read_text())
    if file.suffix == ".css":
        return text
    return _IMPORT.sub(lambda found: f"{found[1]}{found[2]}{PATHS[found[3]]}{found[2]}", text)


def _licence(package: str) -> str:
    about = json.loads((MODULES / package / "package.json").read_text())
    text = (MODULES / package / "LICENSE").read_text().strip()
    return f"{package} {about['version']} ({about['license']})\n\n{text}\n\n{'-' * 80}\n"


if __name__ == "__main__":
    for name, text in vendored().items():
        (STATIC / name).write_text(text)
