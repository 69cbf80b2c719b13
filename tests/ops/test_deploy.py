"""`make deploy`: what it refuses and shows before SAM is started, and what SAM is told."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.infra.test_container import CHILD as CONTAINER
from tests.infra.test_deployment import refusals
from tests.infra.test_edge import DEFAULTS
from tests.infra.test_pipeline import NESTED as PIPELINE
from tests.infra.test_template import TEMPLATE
from tidemark.log.schema import FORMAT_EPOCH, encode_format
from tidemark.ops import deploy

ROOT = Path(__file__).parents[2]
CHOSEN = {"AuthSecretName": "/tidemark/auth-secret", "Protected": "true"}
OUTPUTS = {
    "TableName": "tides-Table", "TableArn": "arn:table", "BucketName": "tides-bucket", "QueuePrefix": "wake-",
}  # fmt: skip


class FakeAws:
    """Answers what is asked of CloudFormation, SSM, Lambda and DynamoDB; each stack is its parameters and
    outputs."""

    def __init__(self) -> None:
        self.stacks: dict[str, dict[str, str]] = {}
        self.secrets = {"/tidemark/auth-secret"}
        self.limits = {"ConcurrentExecutions": 1000, "UnreservedConcurrentExecutions": 1000}
        self.format_epoch = FORMAT_EPOCH

    def client(self, _service: str, *, region_name: str | None) -> FakeAws:
        return self

    def describe_stacks(self, **named: str) -> dict[str, Any]:
        if named["StackName"] not in self.stacks:
            raise ClientError({"Error": {"Code": "ValidationError"}}, "DescribeStacks")
        values = self.stacks[named["StackName"]]
        outputs = [{"OutputKey": name, "OutputValue": value} for name, value in values.items()]
        return {"Stacks": [{"Outputs": outputs}]}

    def get_parameters(self, **named: list[str]) -> dict[str, Any]:
        return {"Parameters": [name for name in named["Names"] if name in self.secrets]}

    def get_account_settings(self) -> dict[str, Any]:
        return {"AccountLimit": self.limits}

    def get_item(self, **named: Any) -> dict[str, Any]:
        assert named["TableName"] == "tides-Table"
        return {"Item": encode_format(self.format_epoch)}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> FakeAws:
    aws = FakeAws()
    monkeypatch.setattr(deploy, "boto3", aws)
    monkeypatch.setattr(deploy, "check_bytecode", lambda: None)
    return aws


@pytest.fixture
def sam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command in sam's place that writes down its arguments."""
    log = tmp_path / "sam.log"
    command = tmp_path / "sam"
    command.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("SAM", str(command))
    monkeypatch.chdir(ROOT)
    return log


def told(sam: Path) -> list[tuple[str, dict[str, str]]]:
    """The options and the parameters of each run of SAM."""
    runs = [line.partition("--parameter-overrides ") for line in sam.read_text().splitlines()]
    return [(options, deploy.pairs_of(shlex.split(overrides))) for options, _, overrides in runs]


def config(folder: Path, overrides: str = "", more: str = "") -> Path:
    path = folder / "samconfig.toml"
    path.write_text(
        f'version = 0.1\n[default.deploy.parameters]\nstack_name = "tides"\n'
        f"parameter_overrides = '{overrides}'\n{more}"
    )
    return path


def test_the_file_of_the_tree_is_protected_and_open_to_nobody(aws: FakeAws, sam: Path) -> None:
    assert deploy.main([]) == 0
    [(options, values)] = told(sam)
    assert values == DEFAULTS | CHOSEN
    assert refusals(values) == []
    assert "--stack-name tidemark --s3-prefix tidemark " in options


def test_every_parameter_is_named_and_what_differs_is_shown(
    aws: FakeAws, sam: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What SAM does not get it leaves as it was: a bucket would stay public after its line was deleted."""
    aws.stacks["tides"] = DEFAULTS | OUTPUTS | {"PublicReadBuckets": "news", "Edge": "optional"}
    chosen = 'AllowAnonymous=true AuthIssuer="the issuer" ReaderConcurrency=250'
    arguments = ["LogLevel=INFO", "--no-execute-changeset", "--stack", "tides"]
    assert deploy.main(arguments, config(tmp_path, chosen)) == 0
    [(options, values)] = told(sam)
    named = {"AllowAnonymous": "true", "AuthIssuer": "the issuer", "ReaderConcurrency": "250"}
    assert values == DEFAULTS | named | {"LogLevel": "INFO"}
    assert " --no-execute-changeset " in options
    printed = capsys.readouterr()
    shown = {line.split()[0]: line.split()[1:] for line in printed.out.splitlines()}
    assert shown["PublicReadBuckets"] == ['""', "news", '""', "<-", "changes"]
    assert shown["Edge"] == ["true", "optional", "true", "<-", "changes"]
    assert "SseSeconds" not in shown
    assert printed.err == "", "the readers' share is bounded"


@pytest.mark.parametrize(
    ("overrides", "arguments", "said"),
    [
        ("LongPolSeconds=5", [], "no parameter LongPolSeconds: did you mean LongPollSeconds?"),
        ("", ["Xyz=1"], "no parameter Xyz: CHANGELOG.md"),
        ("", ["Edge"], "'Edge' is not Name=value"),
        ('Edge="true', [], "samconfig.toml cannot be read: "),
        ("Edge=maybe", [], "Edge of template.yaml must be one of true, optional, false, got 'maybe'"),
        ("LongPollSeconds=60", [], "must be a number from 0 to 27, got '60'"),
        ("RequestsPerSecond=many", [], "must be a number from 1, got 'many'"),
        ("AuthJwksUrl=http://id", [], "must be a text that matches ^(https://.+)?$"),
        ("EdgeSecretName=/w", [], "there is no /w. Make it: aws ssm put-parameter --name /w --type String "),
    ],
)
def test_what_the_template_does_not_take_is_refused_with_what_would_be_right(
    aws: FakeAws,
    sam: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    overrides: str,
    arguments: list[str],
    said: str,
) -> None:
    assert deploy.main(arguments, config(tmp_path, overrides)) == 2
    assert said in capsys.readouterr().err
    assert not sam.exists()


def test_a_file_without_a_stack_and_a_call_that_aws_refuses_are_one_line(
    aws: FakeAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy.main([], tmp_path / "none") == 2

    def refuse(**_: str) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "ada may not"}}, "DescribeStacks")

    monkeypatch.setattr(aws, "describe_stacks", refuse)
    assert deploy.main([], config(tmp_path)) == 2
    missing, refused = capsys.readouterr().err.splitlines()
    assert "names no stack: write stack_name into [default.deploy.parameters]" in missing
    assert "ada may not" in refused


def test_a_release_that_cannot_read_the_stored_format_is_not_deployed(
    aws: FakeAws, sam: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.stacks["tides"] = DEFAULTS | OUTPUTS
    aws.format_epoch = FORMAT_EPOCH + 1
    assert deploy.main([], config(tmp_path)) == 2
    assert f"the table needs {FORMAT_EPOCH + 1}" in capsys.readouterr().err
    assert not sam.exists()


def test_a_layer_without_bytecode_is_refused(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("")
    with pytest.raises(deploy.CannotDeploy, match="make deploy ARGS=--without-bytecode"):
        deploy.check_bytecode(tmp_path)
    (tmp_path / "module.cpython-314.pyc").write_bytes(b"")
    deploy.check_bytecode(tmp_path)


@pytest.mark.parametrize(
    ("limit", "unreserved", "advice"),
    [
        pytest.param(1000, 1000, "ReaderConcurrency=166", id="half of the account, for three functions"),
        pytest.param(175, 175, "ReaderConcurrency=25", id="the smallest account with room"),
        pytest.param(1000, 300, "ReaderConcurrency=66", id="what others have left, but for 100"),
        pytest.param(1000, 140, "LongPollSeconds=5", id="too little is left"),
        pytest.param(10, 10, "LongPollSeconds=5", id="a new account"),
    ],
)
def test_an_account_in_which_readers_stop_writers_is_named(
    aws: FakeAws, limit: int, unreserved: int, advice: str
) -> None:
    aws.limits = {"ConcurrentExecutions": limit, "UnreservedConcurrentExecutions": unreserved}
    warning = deploy.concurrency_warning({"ReaderConcurrency": "0"}, None)
    assert f"runs {limit} functions at once" in warning
    assert advice in warning


PARTS = """
[container.deploy.parameters]
parameter_overrides = "Image=registry/tidemark:1 Vpc=vpc-1 Subnets=subnet-1,subnet-2 Sources=pl-1"
[pipeline.deploy.parameters]
parameter_overrides = 'Streams=agents Schedule="cron(0 4 * * ? *)"'
"""


def test_stacks_beside_the_main_one_follow_it_with_its_values(
    aws: FakeAws, sam: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is closed in the main stack is closed in the container by the same command."""
    path = config(tmp_path, more=PARTS)
    assert deploy.main([], path) == 0
    assert len(told(sam)) == 1
    assert "tides is not deployed yet: the container follows it" in capsys.readouterr().out
    shared = {"PublicReadBuckets": "news", "AuthSecretName": "/tides/auth-secret"}
    aws.stacks = {
        "tides": DEFAULTS | OUTPUTS | shared,
        "tides-container": {"Origin": "balancer.internal,vo_1"},
    }
    assert deploy.main([], path) == 0
    main, container, pipeline = told(sam)[1:]
    assert main[1]["LiveOrigin"] == "balancer.internal,vo_1"
    assert "--stack-name tides-container " in container[0]
    assert "--template-file container/template.yaml " in container[0]
    assert container[1].items() >= (OUTPUTS | shared | {"Image": "registry/tidemark:1"}).items()
    assert container[1].keys() == CONTAINER["Parameters"].keys()
    assert pipeline[1]["Schedule"] == "cron(0 4 * * ? *)"
    assert pipeline[1].keys() == PIPELINE["Parameters"].keys()
    assert not TEMPLATE["Parameters"].keys() & TEMPLATE["Outputs"].keys(), "one dictionary has both"


def test_the_stacks_of_the_file_are_deleted_the_main_one_first(sam: Path, tmp_path: Path) -> None:
    """By `make undeploy`."""
    path = config(tmp_path, more=f'region = "eu-west-1"\n{PARTS}')
    assert deploy.main(["--remove", "--no-prompts"], path) == 0
    names = ("tides", "tides-container", "tides-pipeline")
    expected = [f"delete --stack-name {name} --region eu-west-1 --no-prompts" for name in names]
    assert sam.read_text().splitlines() == expected


def test_a_part_that_lacks_a_value_is_refused_by_its_name(
    aws: FakeAws, sam: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.stacks["tides"] = DEFAULTS | OUTPUTS
    assert deploy.main([], config(tmp_path, more='[container.deploy.parameters]\ntags = "a=b"\n')) == 2
    assert "Image of container/template.yaml must be set in parameter_overrides" in capsys.readouterr().err
