"""A hook of MkDocs: each page is there as Markdown beside its HTML, and `llms.txt` lists them. A page's first
paragraph is its description for search engines. The theme's search has a name, and a cell without a word is
no head of a column."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from textwrap import shorten
from typing import Any

from markdown import Markdown

#: Which test runs a block is of no use there.
_COMMENT = re.compile(r"^<!--.*-->\n", re.MULTILINE)
_PARAGRAPH = re.compile(r"^[A-Z`\[*].{59,}(?:\n.+)*", re.MULTILINE)
#: A link's target, and marks of emphasis and code.
_MARKS = re.compile(r"\[([^\]]+)\]\([^)]*\)(?:\{[^}]*\})?|[*`]")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> None:
    """Writes the page as `repository_links.py` has left it, with the parts of the README that it shows."""
    reader = Markdown(extensions=["pymdownx.snippets"], extension_configs=config.mdx_configs)
    shown = "\n".join(reader.preprocessors["snippet"].run(markdown.split("\n")))
    target = Path(config.site_dir, page.file.src_uri)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(_COMMENT.sub("", shown))
    if first := _PARAGRAPH.search(markdown):
        text = shorten(_MARKS.sub(r"\1", first[0]), 200, placeholder=" …")
        page.meta.setdefault("description", escape(text))
    if page.is_homepage:
        page.meta |= {"title": config.site_description, "hide": ["navigation"]}


def on_page_context(_context: Any, *, page: Any, config: Any, nav: Any, **_: Any) -> None:
    """Writes `llms.txt` with the first page, when the titles of all are known."""
    if page.is_homepage:
        head = f"# {config.site_name}\n\n> {config.site_description}\n\n"
        Path(config.site_dir, "llms.txt").write_text(head + "".join(map(_listed, nav.items)))


def on_post_page(output: str, **_: Any) -> str:
    named = output.replace(
        'data-md-component="search" role="dialog"',
        'data-md-component="search" role="dialog" aria-label="Search"',
    )
    return re.sub("<th([^>]*)></th>", r"<td\1></td>", named)


def _listed(item: Any) -> str:
    if item.children:
        return f"\n## {item.title}\n\n" + "".join(map(_listed, item.children))
    return f"- [{item.title}]({item.file.src_uri})\n"
