"""Draws each Mermaid source of this folder as an SVG: `make diagrams`.

The SVG says in its first comment which source it was drawn from; `tests/infra/test_front_door.py` compares.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import mermaidx

#: Mermaid's colours are for white pages.
DARK = """@media (prefers-color-scheme: dark) {
#my-svg text, #my-svg tspan, #my-svg span { fill: #e6e8ee !important; color: #e6e8ee !important }
#my-svg .node :is(rect, path, circle, polygon) { fill: #2e3440 !important; stroke: #8a93a6 !important }
#my-svg :is(.flowchart-link, .marker) { stroke: #aab2c0 !important }
#my-svg .marker { fill: #aab2c0 !important }
#my-svg .edgeLabel, #my-svg .edgeLabel :is(rect, p) { background-color: #1e2129 !important }
#my-svg .edgeLabel rect { fill: #1e2129 !important; opacity: 1 !important }
}"""

for source in sorted(Path(__file__).parent.glob("*.mmd")):
    svg = mermaidx.render(source.read_text()).svg().replace("</style>", f"{DARK}</style>", 1)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    source.with_suffix(".svg").write_text(
        f"<!-- drawn by `make diagrams` from {source.name}, sha256 {digest} -->\n{svg}\n"
    )
