"""`make rotate-keys`: the keys that sign webhooks, of a stack and of this machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from tests.available import require_engine
from tests.conformance.servers import Server, node, running, tidemark_server
from tests.infra.test_template import TEMPLATE
from tests.ports import free_port
from tests.stack.engines import LocalServices
from tidemark.ops.signing_keys import location_of_stack, main

KID = re.compile(r"ds_[\w-]{43}")


@pytest.fixture
def table_name(services: LocalServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"keys-{uuid.uuid4().hex[:8]}"
    services.create_table(name)
    monkeypatch.setenv("TABLE_NAME", name)
    monkeypatch.setenv("WEBHOOK_KEYS", str(tmp_path / "keys"))
    return name


@pytest.fixture
def parameters(services: LocalServices, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """moto's SSM and CloudFormation; the table stays where it is."""
    require_engine("moto")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", free_port(), verbose=False)
    server.start()
    for service in ("SSM", "CLOUDFORMATION"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", "http://{}:{}".format(*server.get_host_and_port()))
    yield
    server.stop()


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_rotate_publishes_a_key_that_signs_later(table_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert printed(capsys) == ["There is no key: the first webhook subscription makes one"]
    assert main(["rotate"]) == 0
    assert main(["rotate"]) == 0
    told, *listed = printed(capsys)[2:]
    assert re.fullmatch(rf"{KID.pattern} is published and signs from \S+ \S+Z on", told)
    assert [line.endswith("  signs") for line in listed] == [True, False]
    assert KID.findall(told) == KID.findall(listed[1])


def test_remove_takes_back_one_key_and_never_the_last(
    table_name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    main(["rotate"])
    main(["rotate"])
    first, second = KID.findall("".join(printed(capsys)[-2:]))
    assert main(["remove", first]) == 0
    assert [path.stem for path in (tmp_path / "keys").iterdir()] == [second]
    assert printed(capsys)[-1].startswith(second)
    assert main(["remove", second]) == 1
    assert "the only key" in capsys.readouterr().err
    assert main(["remove", first]) == 1
    assert f"There is no key {first}" in capsys.readouterr().err


def test_a_stacks_keys_are_found_by_its_outputs(
    table_name: str, parameters: None, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = {"TableName": {"Value": table_name}, "WebhookKeys": {"Value": "ssm:/tidemark/1/webhook-keys/"}}
    assert outputs.keys() <= TEMPLATE["Outputs"].keys()
    template = {"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}}, "Outputs": outputs}
    boto3.client("cloudformation").create_stack(StackName="tides", TemplateBody=json.dumps(template))
    assert location_of_stack("tides", None) == (table_name, "ssm:/tidemark/1/webhook-keys/")
    assert main(["--stack", "tides", "rotate"]) == 0
    assert main(["--stack", "tides", "rotate"]) == 0
    first, second = KID.findall("".join(printed(capsys)[-2:]))
    assert main(["--stack", "tides", "remove", first]) == 0
    names = [each["Name"] for each in boto3.client("ssm").describe_parameters()["Parameters"]]
    assert names == [f"/tidemark/1/webhook-keys/{second}"]
    capsys.readouterr()
    assert main(["--stack", "nowhere", "list"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_keys_of_this_machine_are_rotated_while_its_server_is_stopped(tmp_path: Path) -> None:
    node()
    with running(tidemark_server("asgi", tmp_path)) as server:
        refused = run_local(server, "rotate")
        assert refused.returncode == 1
        assert "is in use by process" in refused.stderr
        server.stop()
        made = run_local(server, "rotate")
        assert made.returncode == 0, made.stderr
        assert KID.match(made.stdout)
        server.start()
        with urllib.request.urlopen(f"{server.base_url}/v1/stream/__ds/jwks.json", timeout=60) as response:
            [published] = json.load(response)["keys"]
        assert made.stdout.startswith(published["kid"])


def run_local(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidemark.ops.signing_keys", "--data-dir", str(server.data_dir), *arguments],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
