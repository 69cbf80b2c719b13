"""The operations guide names what is there: parameters, outputs, tests; and its lines can be pasted."""

import re
from pathlib import Path

from tests.infra.test_edge import ALARMS
from tests.infra.test_template import ROOT, TEMPLATE

GUIDE = "\n## \n".join(page.read_text() for page in sorted((ROOT / "docs" / "operations").glob("*.md")))


def section(title: str) -> str:
    return GUIDE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def test_parameters_and_outputs_are_the_templates() -> None:
    named = {name for row in rows(section("Parameters")) for name in re.findall(r"`(\w+)`", row[0])}
    assert len(named) > 8
    assert named <= TEMPLATE["Parameters"].keys()
    assert set(re.findall(r"<([A-Z]\w+)(?: of tidemark-2)?>", GUIDE)) <= TEMPLATE["Outputs"].keys()
    assert {"ApiUrl", "Url"} <= TEMPLATE["Outputs"].keys()
    alarms = set(re.findall(r"`(\w+Alarm)`", GUIDE))
    assert alarms == ALARMS.keys()


PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md")])


def anchors(page: Path) -> set[str]:
    """Those of its headings, as GitHub and MkDocs make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_links_are_there() -> None:
    """`make docs` checks the pages of the site; this also those that only the repository shows."""
    for page in PAGES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page}: {target}"
            # The tutorial shows a part of the README.
            if anchor and linked.resolve() != (ROOT / "docs" / "tutorial.md").resolve():
                assert anchor in anchors(linked), f"{page}: {target}#{anchor}"
