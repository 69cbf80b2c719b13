"""The hurried server really hurries: every module that takes one of the shortened times has the short one."""

from __future__ import annotations

import subprocess
import sys

from tests.conformance.servers import ROOT

#: In a process of its own, because it changes the times of the process that it runs in.
SCRIPT = """
import importlib, pkgutil
from tests.chaos.hurried import RECLAIM_MS, TAILS_MS, UPLOADS_MS, hurry
hurry()
import tidemark.log, tidemark.service
from tidemark.protocol.tail import Tail
wanted = {"MAX_AGE_MS": TAILS_MS, "RECLAIM_AFTER_MS": RECLAIM_MS, "LAPSES_AFTER_MS": UPLOADS_MS}
found = set()
for package in (tidemark.log, tidemark.service):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        names = vars(importlib.import_module(module.name))
        for name, value in wanted.items():
            if name in names:
                assert names[name] == value, (module.name, name, names[name])
                found.add(name)
assert found == set(wanted), found
from tests.chaos.hurried import PACK_AFTER_SECONDS
from tidemark.protocol.pack import Packing
packing = Packing.after_seconds(PACK_AFTER_SECONDS)
assert packing.after_ms >= RECLAIM_MS and packing.is_due(0, Tail(3_000)), packing
"""


def test_every_module_has_the_short_times() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
