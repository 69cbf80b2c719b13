"""Draws each Mermaid source of this folder as an SVG: `make diagrams`.

The SVG says in its first comment which source it was drawn from; `tests/infra/test_front_door.py` compares.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import mermaidx

for source in sorted(Path(__file__).parent.glob("*.mmd")):
    # White behind it: a page in dark colours would hide black lines.
    svg = (
        mermaidx.render(source.read_text())
        .svg()
        .replace("background-color: transparent", "background-color: white", 1)
    )
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    source.with_suffix(".svg").write_text(
        f"<!-- drawn by `make diagrams` from {source.name}, sha256 {digest} -->\n{svg}\n"
    )
