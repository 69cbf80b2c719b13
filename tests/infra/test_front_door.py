"""What a visitor meets first: licence, version, checks before a commit, diagrams, the site's contents."""

import hashlib
import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from playwright.sync_api import expect, sync_playwright

from tests.browser.chromium import CHROMIUM, NEEDS_CHROMIUM

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MKDOCS = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def test_the_version_is_the_newest_of_the_changelog() -> None:
    released = re.findall(
        r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert released[0] == PROJECT["version"] == json.loads((ROOT / "package.json").read_text())["version"]


@pytest.mark.parametrize(
    "source", sorted((ROOT / "docs" / "images").glob("*.mmd")), ids=lambda path: path.stem
)
def test_a_diagram_was_drawn_from_its_source(source: Path) -> None:
    """`make diagrams` draws it anew."""
    drawn = source.with_suffix(".svg").read_text()
    assert hashlib.sha256(source.read_bytes()).hexdigest() in drawn.partition("-->")[0]
    assert "<svg" in drawn


def pages_of(nav: Any) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    return {page for each in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(each)}


def test_every_page_for_users_is_in_the_sites_table_of_contents() -> None:
    """The others are in the repository, and CONTRIBUTING.md or the page of the design leads to each."""
    docs = ROOT / "docs"
    excluded = {page for page in docs.rglob("*.md") if page.is_relative_to(docs / "internals")}
    excluded.add(docs / "schema-evolution.md")
    pages = {str(page.relative_to(docs)) for page in {*docs.rglob("*.md")} - excluded}
    assert pages_of(MKDOCS["nav"]) == pages
    assert {"internals/", "schema-evolution.md"} <= set(MKDOCS["exclude_docs"].split())
    leads = "".join(page.read_text() for page in (ROOT / "CONTRIBUTING.md", docs / "design.md"))
    assert [page.name for page in excluded if page.name not in leads] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it."""
    python = ROOT / ".venv-docs" / "bin" / "python"
    if not python.exists() and not os.environ.get("CI"):
        pytest.skip("needs .venv-docs (make docs)")
    built = tmp_path_factory.mktemp("site")
    command = [str(python), "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(built)]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    return built


@pytest.mark.slow
def test_no_link_of_the_site_is_dead(site: Path) -> None:
    """MkDocs lets pages link to those that it leaves out."""
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    assert len(pages) > 30
    for page in pages:
        for target in re.findall(r'(?:href|src)="?(?![a-z]+:|[#"])([^"#?> ]+)', page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(site)}: {target}"


@pytest.mark.slow
def test_each_page_of_the_site_is_there_as_markdown_and_in_llms_txt(site: Path) -> None:
    listed = re.findall(r"^- \[.+\]\((\S+)\)$", (site / "llms.txt").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(pages_of(MKDOCS["nav"]))
    for page in listed:
        text = (site / page).read_text()
        assert text.startswith("# "), page
        assert not re.search("<!--|--8<--", text), page


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_the_site_is_accessible_in_both_themes_and_its_search_finds_the_producer(site: Path) -> None:
    """But for what the theme leaves: areas of a page that have one name."""
    axe = (ROOT / "node_modules" / "axe-core" / "axe.min.js").read_text()
    rules = "{rules: {'landmark-unique': {enabled: false}}}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme, base_url="http://site.test")
            page.route("**", lambda route: route.fulfill(path=f"{site}{urlsplit(route.request.url).path}"))
            for name in ("index", "tutorial", "costs", "guides/llm-tokens"):
                page.goto(f"/{name}.html")
                page.evaluate(axe)
                found = page.evaluate(f"axe.run(document, {rules})")
                assert [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]] == [], name
            page.keyboard.press("/")
            page.keyboard.type("exactly once producer")
            expect(page.locator(".md-search-result__link").first).to_contain_text("Python", timeout=60_000)
        browser.close()
