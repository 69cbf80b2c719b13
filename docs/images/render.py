"""Draws each Mermaid source of this folder as an SVG: `make diagrams`.

The SVG says in its first comment which source it was drawn from; `tests/infra/test_docs.py` compares.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import mermaidx

for source in sorted(Path(__file__).parent.glob("*.mmd")):
    svg = mermaidx.render(source.read_text()).svg()
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    source.with_suffix(".svg").write_text(f"<!-- drawn by `make diagrams` from {source.name}, sha256 {digest} -->\n{svg}\n")
