"""`make deploy`: the stacks beside the main one, and what SAM is told of them."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.infra.test_edge import DEFAULTS
from tests.infra.test_template import ROOT, TEMPLATE
from tidemark.ops import deploy

OUTPUTS = {
    "TableName": "tides-Table", "TableArn": "arn:table", "BucketName": "tides-bucket", "QueuePrefix": "wake-",
    "TryRead": "curl -H \"Authorization: Bearer $TIDEMARK_TOKEN\" 'https://x'",
}  # fmt: skip
MAIN = """version = 0.1
[default.deploy.parameters]
stack_name = "tides"
"""
PARTS = """
[container.deploy.parameters]
parameter_overrides = "Image=registry/tidemark:1 Vpc=vpc-1 LogLevel=INFO"
[pipeline.deploy.parameters]
parameter_overrides = 'Streams=agents Schedule="cron(0 4 * * ? *)"'
"""


class FakeAws:
    """Answers what is asked of CloudFormation; each stack is its parameters and outputs."""

    def __init__(self) -> None:
        self.stacks: dict[str, dict[str, str]] = {}

    def client(self, _service: str, *, region_name: str | None) -> FakeAws:
        return self

    def describe_stacks(self, **named: str) -> dict[str, Any]:
        if named["StackName"] not in self.stacks:
            raise ClientError({"Error": {"Code": "ValidationError"}}, "DescribeStacks")
        values = self.stacks[named["StackName"]]
        return {"Stacks": [{"Outputs": [{"OutputKey": k, "OutputValue": v} for k, v in values.items()]}]}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> FakeAws:
    aws = FakeAws()
    monkeypatch.setattr(deploy, "boto3", aws)
    return aws


@pytest.fixture
def sam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command in sam's place that writes down its arguments. It fails for a stack named `broken`."""
    log = tmp_path / "sam.log"
    command = tmp_path / "sam"
    command.write_text(f'#!/bin/sh\necho "$@" >> {log}\ncase "$*" in *broken*) exit 3;; esac\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(ROOT)
    return log


def told(sam: Path) -> list[tuple[str, dict[str, str]]]:
    """The options and the parameters of each run of SAM. A later value of a parameter counts."""
    runs = [line.partition("--parameter-overrides ") for line in sam.read_text().splitlines()]
    return [
        (options, dict(each.split("=", 1) for each in shlex.split(values))) for options, _, values in runs
    ]


def config(folder: Path, text: str) -> Path:
    path = folder / "samconfig.toml"
    path.write_text(text)
    return path


def test_without_a_section_nothing_more_is_deployed_and_the_first_steps_are_the_last_lines(
    aws: FakeAws, sam: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each in one line, however narrow the terminal is."""
    assert deploy.main([]) == 0, "another stack, named in ARGS"
    first = {"Url": "https://d1.example", "Token": "export TIDEMARK_TOKEN=$(make token STACK=tidemark)"}
    aws.stacks["tidemark"] = OUTPUTS | first
    assert deploy.main([]) == 0
    assert not sam.exists()
    assert capsys.readouterr().out == f"Url      {first['Url']}\nToken    {first['Token']}\n"


def test_stacks_beside_the_main_one_follow_with_its_values(aws: FakeAws, sam: Path, tmp_path: Path) -> None:
    """What is closed in the main stack is closed in the container by the same command, and CloudFront is led
    to the container."""
    shared = {"PublicReadBuckets": "news", "AuthIssuer": 'the "issuer"'}
    origin = {"Origin": "balancer.internal,vo_1"}
    aws.stacks = {"tides": DEFAULTS | OUTPUTS | shared, "tides-container": origin}
    assert deploy.main([], config(tmp_path, MAIN + PARTS)) == 0
    container, pipeline, main = told(sam)
    assert "--template-file container/template.yaml " in container[0]
    assert "--stack-name tides-container " in container[0]
    named = {"Image": "registry/tidemark:1", "LogLevel": "INFO", "TableName": "tides-Table"}
    assert container[1].items() >= (shared | named).items()
    assert "MemorySize" not in container[1]
    assert "--stack-name tides-pipeline " in pipeline[0]
    assert pipeline[1].items() >= {"Schedule": "cron(0 4 * * ? *)", "BucketName": "tides-bucket"}.items()
    assert main == (f"deploy --config-file {tmp_path}/samconfig.toml ", {"LiveOrigin": origin["Origin"]})
    assert not TEMPLATE["Parameters"].keys() & TEMPLATE["Outputs"].keys(), "one dictionary has both"


def test_what_fails_is_the_last(aws: FakeAws, sam: Path, tmp_path: Path) -> None:
    aws.stacks["broken"] = DEFAULTS | OUTPUTS
    assert deploy.main([], config(tmp_path, MAIN.replace("tides", "broken") + PARTS)) == 3
    assert len(told(sam)) == 1


def test_the_stacks_of_the_file_are_deleted_the_main_one_first(sam: Path, tmp_path: Path) -> None:
    """By `make undeploy`."""
    path = config(tmp_path, f'{MAIN}region = "eu-west-1"\n{PARTS}')
    assert deploy.main(["--remove", "--no-prompts"], path) == 0
    names = ("tides", "tides-container", "tides-pipeline")
    expected = [f"delete --region eu-west-1 --no-prompts --stack-name {name}" for name in names]
    assert sam.read_text().splitlines() == expected
