# ruff: noqa: INP001 - a script beside the locks
"""Completes the bill of materials that `make build` has made of requirements/layer.txt:

    python requirements/sbom.py .aws-sam/sbom.cdx.json .aws-sam/build/SharedLayer/python

Adds each package's licence, as the package itself says it; the console's scripts; and AWS's adapter layer.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
CONSOLE = ROOT / "shared" / "tidemark" / "console" / "licences.txt"


def licences(distribution: Distribution) -> list[dict[str, Any]]:
    """An SPDX expression where there is one (PEP 639), else the old field or the classifiers, as text."""
    about = distribution.metadata
    if expression := about.get("License-Expression"):
        return [{"expression": expression}]
    classified = [
        each.rpartition(" :: ")[2] for each in about.get_all("Classifier", []) if each[:7] == "License"
    ]
    named = classified or [line for line in (about.get("License") or "").splitlines()[:1] if line]
    return [{"license": {"name": name}} for name in named]


def console_scripts() -> list[dict[str, Any]]:
    """`tests/infra/test_console_files.py` compares this file with the lock."""
    found = re.findall(r"^(\S+) (\d\S*) \((.+)\)$", CONSOLE.read_text(), re.MULTILINE)
    return [
        component(name, version, licence, f"pkg:npm/{quote(name)}@{version}")
        for name, version, licence in found
    ]


def adapter_layer() -> dict[str, Any]:
    """Lambda Web Adapter, which the live function runs behind."""
    [version] = re.findall(r":layer:LambdaAdapterLayerArm64:(\d+)", (ROOT / "template.yaml").read_text())
    purl = f"pkg:generic/LambdaAdapterLayerArm64@{version}"
    return component("LambdaAdapterLayerArm64", version, "Apache-2.0", purl)


def component(name: str, version: str, licence: str, purl: str) -> dict[str, Any]:
    listed = [{"license": {"id": licence}}]
    return {
        "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "licenses": listed
    }  # fmt: skip


def main(materials: Path, layer: Path) -> None:
    document = json.loads(materials.read_text())
    said = {
        re.sub(r"[-_.]+", "-", each.name).lower(): licences(each) for each in distributions(path=[str(layer)])
    }
    for each in document["components"]:
        each["licenses"] = said[each["name"].lower()]
    document["components"] += [*console_scripts(), adapter_layer()]
    materials.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
