"""A hook of MkDocs: a link to a page that only the repository shows becomes the name of its file."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+\.md)[^)\s]*\)")


def on_page_markdown(markdown: str, *, page: Any, files: Any, **_: Any) -> str:
    def named(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link[2]))
        file = files.get_file_from_path(target)
        if file is None or not file.inclusion.is_excluded():
            return link[0]
        return f'<abbr title="docs/{target} in the repository">{link[1]}</abbr>'

    return _LINK.sub(named, markdown)
