"""The jobs of `pipeline/`, which are scripts, as modules."""

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType

PIPELINE = Path(__file__).parents[2] / "pipeline"


def load_job(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"pipeline_{name}", PIPELINE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parser_of(name: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = load_job(name).parser()
    return made
