"""The ratios of a run as bars: `python -m benchmarks.plot latest.json latest.png`.

Apart from the run, because only this needs matplotlib (the extra `bench`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl  # type: ignore[import-not-found, unused-ignore]

mpl.use("Agg")

from matplotlib import pyplot as plt  # type: ignore[import-not-found, unused-ignore]


def draw(figures: Sequence[dict[str, Any]], target: Path) -> None:
    """Bars on a logarithmic axis, growing from «as good as the reference», and marks at what is to reach."""
    titles = list(figures[0]["ours"])
    canvas, axes = plt.subplots(figsize=(10, 1 + 0.4 * len(figures) * max(1.0, 0.7 * len(titles))))
    height = 0.8 / len(titles)
    for index, title in enumerate(titles):
        ratios = [each["ours"][title]["ratio"] or 1.0 for each in figures]
        places = [number + index * height for number in range(len(figures))]
        bars = axes.barh(
            places, [ratio - 1.0 for ratio in ratios], left=1.0, height=height * 0.9, label=title
        )
        axes.bar_label(bars, labels=[f"{ratio:.2g}x" for ratio in ratios], padding=3, fontsize=8)
    middle = [number + 0.4 - height / 2 for number in range(len(figures))]
    axes.set_yticks(middle, [each["label"] for each in figures])
    axes.plot([each["target"] for each in figures], middle, "k|", markersize=14, label="to reach")
    scale_axis(axes, [each["ours"][title]["ratio"] or 1.0 for each in figures for title in titles])
    axes.legend(loc="best", fontsize=8)
    canvas.tight_layout()
    canvas.savefig(target, dpi=120)
    plt.close(canvas)


def scale_axis(axes: Any, ratios: Sequence[float]) -> None:
    """Powers of two as ticks, with room beside the longest bars for their labels."""
    low, high = min(0.5, *ratios) / 1.4, max(4.0, *ratios) * 1.4
    ticks = [tick for tick in (2.0**power for power in range(-6, 8)) if low <= tick <= high]
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.axvline(1.0, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("ratio to the Node reference server with its file store (over 1 is better)")


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text())["figures"], Path(sys.argv[2]))
