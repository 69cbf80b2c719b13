"""What is in the built layer and the built template: sizes, versions, and that they are of this source."""

import json
import re
import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml

from benchmarks.layer import BUILD, LAYER
from tests.infra import test_template
from tests.infra.test_locks import hashed_pins

pytestmark = [pytest.mark.artifact, pytest.mark.usefixtures("built")]

ROOT = Path(__file__).parents[2]
MEGABYTE = 1024 * 1024
VARIABLES = test_template.FUNCTION_GLOBALS["Environment"]["Variables"].keys()


NOT_DEPLOYED = {"cli", "client", "engine", "ops", "server", "spark", "testing.py"}


def test_the_packages_are_small() -> None:
    """A function is its wiring; the layer is far from the 250 MB that Lambda takes."""
    for name in test_template.FUNCTIONS:
        assert size_of(BUILD / name) < 10_000, name
    assert size_of(BUILD / "SharedLayer") < 60 * MEGABYTE
    rooms = {path.name for path in (LAYER / "tidemark").iterdir()}
    assert not rooms & NOT_DEPLOYED, "what cannot run there is not deployed"
    assert {path.name for path in LAYER.iterdir()} >= {"tidemark", "jwt", "cryptography", "mangum", "uvicorn"}
    assert not any(
        (LAYER / name).exists() for name in ("pytest", "hypothesis", "ministack", "schemathesis", "tests")
    )


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def test_what_is_compiled_is_for_lambda() -> None:
    """Of the processor's kind, and for the runtime's Python or every one."""
    runtime = test_template.FUNCTION_GLOBALS["Runtime"].removeprefix("python").replace(".", "")
    libraries = list(LAYER.rglob("*.so"))
    assert libraries
    for library in libraries:
        header = library.read_bytes()[:20]
        assert header[:4] == b"\x7fELF"
        assert int.from_bytes(header[18:20], "little") == 0xB7, f"{library.name} is not for arm64"
        assert f"cpython-{runtime}" in library.name or "abi3" in library.name, library.name


def test_the_layer_has_bytecode_where_the_runtimes_python_is_here() -> None:
    """Of every module and for that Python alone: Lambda ignores another's. Without it there is none."""
    runtime = test_template.FUNCTION_GLOBALS["Runtime"]
    tag = f"cpython-{runtime.removeprefix('python').replace('.', '')}"
    found = {path.name for path in LAYER.rglob("*.pyc")}
    assert [name for name in found if tag not in name] == []
    if shutil.which(runtime) is None:
        assert found == set()
        return
    for module in LAYER.rglob("*.py"):
        assert (module.parent / "__pycache__" / f"{module.stem}.{tag}.pyc").exists(), module


def test_the_layer_says_which_commit_it_was_built_from() -> None:
    """The last one that changed what is in it, so that other commits make no other layer."""
    file = LAYER / "tidemark" / "commit.txt"
    asked = ["git", "log", "-1", "--format=%h", "--abbrev=12", "--", "shared", "requirements/layer.txt"]
    known = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    if known.returncode or not known.stdout:
        assert not file.exists(), "without a repository nothing is known of it"
        return
    assert re.fullmatch(r"[0-9a-f]{12,}(-dirty)?", file.read_text().strip())


def test_the_bill_of_materials_names_what_is_in_the_layer() -> None:
    """By name, version, licence and the hashes of which one was installed, in CycloneDX's format; and the
    console's scripts and AWS's adapter."""
    materials = json.loads((BUILD.parent / "sbom.cdx.json").read_text())
    assert (materials["bomFormat"], materials["metadata"]["component"]["name"]) == (
        "CycloneDX",
        "tidemark-streams",
    )
    assert [each["name"] for each in materials["components"] if not each["licenses"]] == []
    others = {each["name"] for each in materials["components"] if "pkg:pypi/" not in each["purl"]}
    assert {"preact", "@durable-streams/client", "LambdaAdapterLayerArm64"} <= others
    listed = {each["name"].lower(): each for each in materials["components"] if each["name"] not in others}
    found = distributions(path=[str(LAYER)])
    installed = {re.sub(r"[-_.]+", "-", each.name).lower(): each.version for each in found}
    assert {name: each["version"] for name, each in listed.items()} == installed
    for name, (_, hashes) in hashed_pins(ROOT / "requirements" / "layer.txt").items():
        [distribution] = listed[name]["externalReferences"]
        said = {each["content"] for each in distribution["hashes"]}
        assert said == {each.rpartition(":")[2] for each in hashes.split()}


def test_the_built_template_is_the_one_that_was_checked() -> None:
    """An old build would pass with what the template no longer says."""
    text = (BUILD / "template.yaml").read_text()
    built = yaml.load(text, test_template.CloudFormationLoader)
    for parts in (built, test_template.TEMPLATE):
        assert parts["Globals"]["Function"]["Environment"]["Variables"].keys() == VARIABLES
    assert built["Resources"].keys() == test_template.TEMPLATE["Resources"].keys()
    assert built["Parameters"] == test_template.TEMPLATE["Parameters"]


def test_the_build_is_of_this_source() -> None:
    for path in (ROOT / "shared" / "tidemark").rglob("*.py"):
        relative = path.relative_to(ROOT / "shared" / "tidemark")
        if relative.parts[0] not in NOT_DEPLOYED:
            assert (LAYER / "tidemark" / relative).read_bytes() == path.read_bytes(), (
                f"{relative}: build again"
            )
