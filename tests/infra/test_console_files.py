"""The console's files: what the lock pins, with its licences, small, and without anything from elsewhere."""

import gzip
import json
import re
from pathlib import Path

import pytest

from console.vendor import FILES, LICENCES, MODULES, ROOT, STATIC, vendored

MAX_BYTES = 150_000


@pytest.mark.skipif(
    not (MODULES / "preact").exists(), reason="npm packages are not installed (`make` installs them)"
)
def test_the_libraries_are_those_of_the_lock() -> None:
    lock = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    for package, _ in FILES.values():
        installed = json.loads((MODULES / package / "package.json").read_text())["version"]
        assert installed == lock[f"node_modules/{package}"]["version"]
    for name, text in vendored().items():
        assert (STATIC / name).read_text() == text, f"{name}: run python console/vendor.py"


def test_every_library_has_its_licence() -> None:
    text = (STATIC / LICENCES).read_text()
    for package in {package for package, _ in FILES.values()}:
        assert re.search(
            rf"^{re.escape(package)} \d+\.\d+\.\d+ \((MIT|Apache-2\.0)\)$", text, re.MULTILINE
        ), package


def test_the_guide_says_how_large_the_console_is() -> None:
    """In KB, to the next ten. The front page is one of its own."""
    size = sum(len(gzip.compress(each.read_bytes(), 6)) for each in STATIC.iterdir() if each.stem != "front")
    guide = " ".join((ROOT / "docs" / "console.md").read_text().split())
    assert size < MAX_BYTES
    assert f"about {round(size / 1000, -1):.0f} KB compressed" in guide


def test_the_console_asks_for_all_its_scripts_at_once() -> None:
    """A browser does not learn of them one from the other, a round trip each."""
    named = set(re.findall(r'"console/([^"]+\.js)"', (STATIC / "console.html").read_text()))
    imports = re.compile(r'(?:from|import) ?"\./([^"]+)"')
    imported = {each for name in named for each in imports.findall((STATIC / name).read_text())}
    assert named == imported | {"console.js"}


@pytest.mark.parametrize("page", ["console.html", "docs.html", "front.html"])
def test_a_page_has_no_script_of_its_own(page: str) -> None:
    text = re.sub(r'<a href="https:[^"]+">', "", (STATIC / page).read_text())  # A link loads nothing.
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    assert not re.search(r"\son\w+=|style=|javascript:", text)
    assert "//" not in text.replace("</", "")


def own_files() -> list[Path]:
    return [file for file in sorted(STATIC.glob("*.js")) if file.name not in FILES]


@pytest.mark.parametrize("file", own_files(), ids=lambda file: file.name)
def test_a_script_makes_no_markup_from_text(file: Path) -> None:
    text = file.read_text()
    assert not re.search(
        r"(inner|outer)HTML|dangerouslySet|insertAdjacent|document\.write|(eval|Function)\(", text
    )
    imported = re.findall(r'^import .*?"(\./[^"]+)"$', text, re.MULTILINE)
    assert imported or file.name in {
        "colours.js",
        "file-types.js",
        "format.js",
        "links.js",
        "messages.js",
        "proxy.js",
        "snippets.js",
        "socket.js",
    }
    assert all((STATIC / name.removeprefix("./")).exists() for name in imported)
    assert "localStorage" not in text or file.name == "colours.js", "a token stays in the tab"
