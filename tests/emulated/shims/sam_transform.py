"""AWS::Serverless-2016-10-31: AWS expands it on the server. The emulator expands it when SAM's translator is
importable; the translator's dependencies exclude the emulator's, so it runs in the SAM CLI's own environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

TRANSLATOR = Path(__file__).with_name("translate.py")
TRANSLATE_SECONDS = 120


def install(sam_python: Path) -> None:
    module = types.ModuleType("samtranslator.translator.transform")

    def transform(template: Any, parameters: Any, _policies: Any) -> Any:
        return translate(sam_python, template, parameters)

    module.transform = transform  # type: ignore[attr-defined]
    for name in ("samtranslator", "samtranslator.translator"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[module.__name__] = module


def translate(sam_python: Path, template: Any, parameters: Any) -> Any:
    """The template without `AWS::Serverless::*`. Raises ValueError with the translator's own message."""
    run = subprocess.run(
        # -I: this directory's modules are not on its path, whatever the names of the standard library's.
        [str(sam_python), "-I", str(TRANSLATOR)],
        input=json.dumps({"template": template, "parameters": parameters}),
        capture_output=True,
        text=True,
        timeout=TRANSLATE_SECONDS,
        check=False,
    )
    if run.returncode != 0:
        raise ValueError(
            run.stderr.strip().splitlines()[-1] if run.stderr.strip() else "SAM's translator failed"
        )
    return json.loads(run.stdout)
