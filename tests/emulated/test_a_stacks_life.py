"""A stack is upgraded, deleted and restored into another one; what was acknowledged stays readable."""

import json
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.servers import ROOT, own_environment, running, temporary_directory
from tests.emulated.deployment import BUILT, Stack, delete, deploy
from tests.emulated.emulator import Emulator
from tidemark.ops import copy_table

pytestmark = pytest.mark.emulated

PARAMETERS = {"AllowAnonymous": "true", "Edge": "false", "SseSeconds": "3"}
LARGE = secrets.token_bytes(150_000)
TEXT = {"Content-Type": "text/plain"}
BYTES = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with temporary_directory() as directory:
        emulator = Emulator(directory, ["first", "second", "piped"])
        with running(emulator.server):
            yield emulator


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def earlier_version() -> str:
    """The last tag before this commit; without one, the last commit in which the template was different."""
    tagged = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0", "HEAD^"],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    if tagged.returncode == 0:
        return tagged.stdout.strip()
    now = (ROOT / "template.yaml").read_text().strip()
    for commit in git("log", "--format=%H", "-n", "20", "--", "template.yaml").splitlines():
        if git("show", f"{commit}:template.yaml") != now:
            return commit
    raise AssertionError("the template has always been the same")


def build_of(version: str, target: Path) -> Path:
    """What `make build` made at `version`: template, functions and package, with today's locked packages."""
    shutil.copytree(BUILT.parent, target, copy_function=os.link)
    shutil.rmtree(target / "SharedLayer" / "python" / "tidemark")
    archive = subprocess.run(
        ["git", "archive", version, "shared/tidemark", "functions"],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout  # fmt: skip
    source = target / "source"
    source.mkdir()
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
    package = target / "SharedLayer" / "python" / "tidemark"
    shutil.copytree(
        source / "shared" / "tidemark", package, ignore=shutil.ignore_patterns("local", "spark", "ops", "cli")
    )
    text = git("show", f"{version}:template.yaml")
    for name in re.findall(r"Code(?:Uri)?: functions/(\w+)/", text):
        built = target / {"setup": "OriginSecretFunction"}.get(name, f"{name.capitalize()}Function")
        shutil.rmtree(built)
        shutil.copytree(source / "functions" / name, built)
        text = text.replace(f"functions/{name}/", built.name)
    text = text.replace("ContentUri: shared/", "ContentUri: SharedLayer")
    # Those that were nested then, off by default, are today's in every version.
    text = text.replace("TemplateURL: ", f"TemplateURL: {ROOT}/")
    shutil.rmtree(source)
    template = target / "template.yaml"
    template.unlink()
    template.write_text(text)
    return template


@pytest.fixture(scope="module")
def first(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """A stack of the version before, with data in it, upgraded to this one."""
    template = build_of(earlier_version(), tmp_path_factory.mktemp("earlier") / "build")
    stack = deploy(emulator, "first", PARAMETERS, template=template)
    with httpx.Client(base_url=stack.url, timeout=60, trust_env=False) as client:
        assert client.put("/v1/stream/kept", content=b"before.", headers=TEXT).status_code == 201
        assert client.put("/v1/stream/large", content=LARGE, headers=BYTES).status_code == 201
        assert client.put("/agents").status_code == 201
        assert client.put("/agents/run", content=b"12345", headers=TEXT).status_code == 201
    upgraded = deploy(emulator, "first", PARAMETERS)
    assert upgraded.outputs["TableName"] == stack.outputs["TableName"], "the upgrade replaced the table"
    assert upgraded.outputs["BucketName"] == stack.outputs["BucketName"], "the upgrade replaced the bucket"
    return upgraded


def send(stack: Stack, method: str, path: str, content: bytes) -> int:
    given: dict[str, Any] = {"content": content, "headers": TEXT, "timeout": 60, "trust_env": False}
    return httpx.request(method, f"{stack.url}{path}", **given).status_code


def read(stack: Stack, path: str) -> bytes:
    return httpx.get(f"{stack.url}{path}", params={"offset": "-1"}, timeout=60, trust_env=False).content


def test_an_upgrade_keeps_the_data_and_goes_on(first: Stack) -> None:
    """Written by the version before, read and continued by this one."""
    assert send(first, "POST", "/v1/stream/kept", b"after.") == 204
    assert read(first, "/v1/stream/kept") == b"before.after."
    assert read(first, "/v1/stream/large") == LARGE
    assert read(first, "/agents/run") == b"12345"


def test_a_ceiling_is_set_and_taken_off(emulator: Emulator, first: Stack) -> None:
    """The upgraded stack has none; what an update does not name AWS keeps."""

    def ceiling(units: str) -> Any:
        deploy(emulator, "first", PARAMETERS | {"TableUnitsPerSecond": units})
        table = emulator.client("dynamodb").describe_table(TableName=first.outputs["TableName"])["Table"]
        return table["OnDemandThroughput"]

    assert ceiling("1000") == {"MaxReadRequestUnits": 1000, "MaxWriteRequestUnits": 1000}
    assert ceiling("0") == {"MaxReadRequestUnits": -1, "MaxWriteRequestUnits": -1}


def test_the_packer_packs(emulator: Emulator, first: Stack) -> None:
    """An hour is too long to wait: the functions are told that none has to pass."""
    functions = emulator.client("lambda")

    deployed = {each["FunctionName"]: each for each in functions.list_functions()["Functions"]}
    [packer] = [name for name in deployed if name.startswith("first-PackerFunction")]
    [write] = [name for name in deployed if name.startswith("first-WriteFunction")]
    for name in (packer, write):
        variables = deployed[name]["Environment"]["Variables"] | {"PACK_AFTER_SECONDS": "0"}
        functions.update_function_configuration(FunctionName=name, Environment={"Variables": variables})
    with httpx.Client(base_url=first.url, timeout=60, trust_env=False) as client:
        assert client.put("/v1/stream/packed", headers=TEXT).status_code == 201
        for letter in (b"a", b"b", b"c"):
            assert client.post("/v1/stream/packed", content=letter, headers=TEXT).status_code == 204
    answer = json.load(functions.invoke(FunctionName=packer, Payload=b"{}")["Payload"])
    assert answer["packed"] == 1, answer
    assert read(first, "/v1/stream/packed") == b"abc"


def test_a_gradual_stack_has_versions_that_a_new_parameter_replaces(emulator: Emulator, first: Stack) -> None:
    functions = emulator.client("lambda")
    topic = emulator.client("sns").create_topic(Name="alarms")["TopicArn"]
    names = [each["FunctionName"] for each in functions.list_functions()["Functions"]]
    write, read_function = (
        next(name for name in names if name.startswith(f"first-{kind}Function")) for kind in ("Write", "Read")
    )

    def deployed(**changed: str) -> set[tuple[str, str]]:
        """The version that each alias names after a deployment; an append and a read went through it."""
        deploy(emulator, "first", PARAMETERS | {"Gradual": "true", "AlarmTopicArn": topic} | changed)
        # What an alias does not name is broken, and nobody notices.
        variables = {"TABLE_NAME": "none"}
        for name in (write, read_function):
            functions.update_function_configuration(FunctionName=name, Environment={"Variables": variables})
        path = f"/v1/stream/gradual/{len(changed)}"
        assert send(first, "PUT", path, b"x") == 201
        assert read(first, path) == b"x"
        aliases = [functions.get_alias(FunctionName=name, Name="deployed") for name in (write, read_function)]
        return {(alias["AliasArn"], alias["FunctionVersion"]) for alias in aliases}

    assert not deployed() & deployed(LogLevel="INFO")


def test_a_deleted_stack_leaves_its_data_and_a_second_one_takes_it(
    emulator: Emulator, first: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of docs/operations/restore.md; the table that stayed stands in for one restored by AWS."""
    delete(emulator, "first")
    table, bucket = first.outputs["TableName"], first.outputs["BucketName"]
    assert emulator.client("dynamodb").describe_table(TableName=table)["Table"]["TableStatus"] == "ACTIVE"
    functions = emulator.client("lambda").list_functions()["Functions"]
    assert [each["FunctionName"] for each in functions if each["FunctionName"].startswith("first-")] == []

    second = deploy(emulator, "second", PARAMETERS)
    s3 = emulator.client("s3")
    for each in s3.list_objects_v2(Bucket=bucket)["Contents"]:
        s3.copy_object(
            Bucket=second.outputs["BucketName"],
            Key=each["Key"],
            CopySource={"Bucket": bucket, "Key": each["Key"]},
        )
    for name in own_environment().keys() ^ os.environ.keys():
        monkeypatch.delenv(name)
    for name, value in emulator.environment.items():
        monkeypatch.setenv(name, value)
    assert copy_table.main([table, second.outputs["TableName"]]) == 0
    assert read(second, "/v1/stream/kept") == b"before.after."
    assert read(second, "/v1/stream/large") == LARGE
    assert read(second, "/v1/stream/packed") == b"abc"
    assert read(second, "/agents/run") == b"12345"
    assert send(second, "POST", "/v1/stream/kept", b"again.") == 204
    assert read(second, "/v1/stream/kept") == b"before.after.again."
