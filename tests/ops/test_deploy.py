"""`make deploy`: four questions, once; every parameter is named, every time."""

from __future__ import annotations

import os
import shlex
import stat
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import boto3
import pytest

from tests.infra.test_container import CHILD as CONTAINER
from tests.infra.test_deployment import refusals
from tests.infra.test_edge import DEFAULTS
from tests.infra.test_pipeline import NESTED as PIPELINE
from tests.infra.test_template import TEMPLATE
from tests.ports import free_port
from tests.support import make_world
from tidemark.local.engines import LocalServices
from tidemark.log.schema import FORMAT_EPOCH, encode_format
from tidemark.ops import deploy

ACCOUNT = deploy.SignedInAccount("aws", "123456789012")
REAL = {name: getattr(deploy, name) for name in ("concurrency_of", "deployed_stack", "make_what_is_missing")}
CHECK_BYTECODE = deploy.check_bytecode
ROOM = deploy.ConcurrencyLimit(1000, 1000)


def answering(*answers: str) -> Callable[[str], str]:
    waiting: Iterator[str] = iter(answers)
    return lambda _question: next(waiting)


@pytest.fixture
def sam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command in sam's place that writes down its arguments; nothing else is reached."""
    log = tmp_path / "sam.log"
    command = tmp_path / "sam"
    command.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("SAM", str(command))
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    monkeypatch.setattr(deploy, "signed_in", lambda _region: ACCOUNT)
    monkeypatch.setattr(deploy, "make_what_is_missing", lambda *_: None)
    monkeypatch.setattr(deploy, "deployed_stack", lambda _kept: {})
    monkeypatch.setattr(deploy, "stored_format", lambda _kept: FORMAT_EPOCH)
    monkeypatch.setattr(deploy, "concurrency_of", lambda _kept: ROOM)
    monkeypatch.setattr(deploy, "check_bytecode", lambda: None)
    return log


def last_overrides(sam: Path) -> dict[str, str]:
    """What SAM was told in its last run."""
    return deploy.pairs_of(
        shlex.split(sam.read_text().splitlines()[-1].partition("--parameter-overrides ")[2])
    )


@pytest.mark.parametrize(
    ("answers", "parameters"),
    [
        (("", "", "", ""), {"AuthSecretName": "/tidemark/auth-secret", "Edge": "true"}),
        (
            ("mine us-west-2", "everybody", "no", "me@example.org"),
            {
                "AllowAnonymous": "true",
                "Edge": "false",
                "AlarmTopicArn": "arn:aws:sns:us-west-2:123456789012:mine-alarms",
            },
        ),
        (
            ("mine", "https://id.example/jwks", "streams", "no", "arn:aws:sns:eu-west-1:1:ours"),
            {
                "AuthJwksUrl": "https://id.example/jwks",
                "AuthAudience": "streams",
                "Edge": "false",
                "AlarmTopicArn": "arn:aws:sns:eu-west-1:1:ours",
            },
        ),
    ],
)
def test_the_answers_become_the_templates_parameters(
    answers: tuple[str, ...], parameters: dict[str, str]
) -> None:
    """An empty answer takes what is in brackets. The stack is protected, allowed by the template's rules, and
    open only to whom the answer names."""
    first = deploy.ask_first(answering(*answers), ACCOUNT)
    assert first.parameters == parameters | {"Protected": "true"}
    assert first.parameters.keys() <= TEMPLATE["Parameters"].keys()
    assert refusals(DEFAULTS | first.parameters) == []
    assert first.email == ("me@example.org" if "me@example.org" in answers else "")


def test_the_answers_are_remembered_and_nothing_is_asked_again(sam: Path, tmp_path: Path) -> None:
    config = tmp_path / "samconfig.toml"
    config.write_text('version = 0.1\n\n[prod.deploy.parameters]\nstack_name = "prod"\n')
    assert deploy.main([], answering(*GOOD), config) == 0
    assert deploy.main(["--dry-run"], answering(), config) == 0
    kept = deploy.remembered(config)
    assert kept is not None
    assert (kept["stack_name"], kept["region"]) == ("tides", "eu-north-1")
    # Roles without names of their own.
    assert kept["capabilities"] == "CAPABILITY_IAM"
    assert kept["parameter_overrides"] == "AuthSecretName=/tides/auth-secret Edge=false Protected=true"
    first, second = sam.read_text().splitlines()
    assert "--no-execute-changeset" not in first
    assert "--no-execute-changeset" in second
    assert 'stack_name = "prod"' in config.read_text()


def test_undeploy_deletes_the_stack_that_is_remembered(sam: Path, tmp_path: Path) -> None:
    config = tmp_path / "samconfig.toml"
    assert deploy.main(["--remove"], answering(), config) == 2
    deploy.main([], answering(*GOOD), config)
    assert config.read_text().startswith("version = 0.1\n"), "sam takes no file without a version"
    assert deploy.main(["--remove", "--yes"], answering(), config) == 0
    assert sam.read_text().splitlines()[-1] == "delete --stack-name tides --region eu-north-1 --no-prompts"


GOOD = ("tides", "", "no", "")


@pytest.mark.parametrize(
    ("arguments", "answers", "said"),
    [
        ([], ("a b c",), "a name and a region"),
        ([], ("", "friends"), "'friends' is none of"),
        ([], ("", "https://id.example/jwks", ""), "without an audience"),
        ([], ("", "", "maybe"), "neither yes nor no"),
        ([], ("", "", "", "my phone"), "neither an e-mail address"),
        (["Tides=high"], GOOD, "no parameter Tides"),
        (["Edge"], GOOD, "'Edge' is not Name=value"),
    ],
)
def test_what_is_invalid_is_refused_and_nothing_is_saved(
    sam: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    *,
    answers: tuple[str, ...],
    said: str,
) -> None:
    config = tmp_path / "samconfig.toml"
    assert deploy.main(arguments, answering(*answers), config) == 2
    assert said in capsys.readouterr().err
    assert not config.exists()
    assert not sam.exists()


@pytest.mark.parametrize(
    ("limit", "unreserved", "chosen", "deployed", "reserved"),
    [
        pytest.param(1000, 1000, {}, {}, 250, id="half of the account, for two functions"),
        pytest.param(150, 150, {}, {}, 25, id="the smallest account with room"),
        pytest.param(1000, 300, {}, {}, 100, id="what others have left, but for 100"),
        pytest.param(1000, 500, {}, {"Reader": 250}, 250, id="its own stay the same"),
        pytest.param(1000, 500, {}, {"Read": 250, "Live": 250}, 250, id="by an earlier release"),
        pytest.param(1000, 140, {}, {}, 0, id="too little is left"),
        pytest.param(149, 149, {}, {}, 0, id="a small account"),
        pytest.param(10, 10, {}, {}, 0, id="a new account"),
        pytest.param(1000, 1000, {"Reader": 0}, {}, 0, id="not what was chosen"),
    ],
)
def test_waiting_readers_get_half_of_the_account_or_wait_for_seconds_only(
    limit: int, unreserved: int, chosen: dict[str, int], deployed: dict[str, int], reserved: int
) -> None:
    def named(values: dict[str, int]) -> dict[str, str]:
        return {f"{name}Concurrency": str(value) for name, value in values.items()}

    room = deploy.ConcurrencyLimit(limit, unreserved)
    values = deploy.every_parameter(named(chosen), named(deployed), room)
    warning = deploy.concurrency_warning(values, room)
    assert (values["ReaderConcurrency"], bool(warning)) == (str(reserved), reserved == 0)
    assert values["LongPollSeconds"] == ("25" if reserved or chosen else "5")
    assert f"{limit} functions at once" in warning or not warning
    declared = TEMPLATE["Parameters"]["LongPollSeconds"]
    assert declared["MinValue"] <= int(values["LongPollSeconds"]) <= declared["Default"]


def test_in_such_an_account_long_polls_last_seconds_only(
    sam: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside what was chosen, and for as long as the account has the limit: nothing of it is remembered."""
    config = tmp_path / "samconfig.toml"
    monkeypatch.setattr(deploy, "concurrency_of", lambda _kept: deploy.ConcurrencyLimit(10, 10))
    assert deploy.main(["LongPollSeconds=20"], answering(*GOOD), config) == 0
    bounded = last_overrides(sam)
    assert (bounded["LongPollSeconds"], bounded["SseSeconds"], bounded["ReaderConcurrency"]) == (
        "20",
        "10",
        "0",
    )
    assert "10 functions at once" in capsys.readouterr().err
    monkeypatch.setattr(deploy, "concurrency_of", lambda _kept: ROOM)
    assert deploy.main([], answering(), config) == 0
    usual = last_overrides(sam)
    assert (usual["LongPollSeconds"], usual["SseSeconds"], usual["ReaderConcurrency"]) == ("25", "55", "250")


class Refusing(BaseHTTPRequestHandler):
    """AWS as it answers credentials without a right: CloudFormation in XML."""

    def do_GET(self) -> None:
        body = b'{"__type": "AccessDeniedException", "Message": "ada is not authorized to perform: it"}'
        if "form" in self.headers.get("Content-Type", ""):
            code = b"<Code>AccessDenied</Code><Message>ada is not authorized to perform: it</Message>"
            body = b"<ErrorResponse><Error>" + code + b"</Error></ErrorResponse>"
        self.send_response(403)
        self.send_header("x-amzn-errortype", "AccessDeniedException")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.mark.parametrize("call", ["concurrency_of", "deployed_stack", "make_what_is_missing"])
@pytest.mark.parametrize("is_reached", [True, False], ids=["refused", "not reached"])
def test_a_call_that_aws_refuses_is_one_line_with_the_right_that_it_takes(
    sam: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    call: str,
    *,
    is_reached: bool,
) -> None:
    monkeypatch.setattr(deploy, call, REAL[call])
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    config = tmp_path / "samconfig.toml"
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port if is_reached else free_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        assert deploy.main([], answering("", "", "", ""), config) == 2
        server.shutdown()
    [line] = capsys.readouterr().err.splitlines()
    assert ("not authorized to perform" if is_reached else "Could not connect") in line
    assert not config.exists(), "the questions are asked again"
    assert not sam.exists()


def test_every_parameter_is_named_and_what_differs_is_shown_before_sam_asks(
    sam: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What SAM does not get it leaves as it was: a bucket would stay public after its line was deleted."""
    config = tmp_path / "samconfig.toml"
    config.write_text(
        'version = 0.1\n[default.deploy.parameters]\nstack_name = "tides"\nregion = "eu-north-1"\n'
        """parameter_overrides = 'AllowAnonymous=true AuthIssuer="the issuer"'\n"""
    )
    before = DEFAULTS | {"PublicReadBuckets": "news", "Edge": "optional", "ReaderConcurrency": "250"}
    monkeypatch.setattr(deploy, "deployed_parameters", lambda _kept: before)
    assert deploy.main([], answering(), config) == 0
    assert last_overrides(sam) == DEFAULTS | {
        "AllowAnonymous": "true",
        "AuthIssuer": "the issuer",
        "ReaderConcurrency": "250",
    }
    shown = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line}
    assert shown["PublicReadBuckets"] == ['""', "news", '""', "<-", "changes"]
    assert shown["Edge"] == ["true", "optional", "true", "<-", "changes"]
    assert shown["ReaderConcurrency"] == ["0", "250", "250"]
    assert "LogLevel" not in shown


PARTS = """
[container.deploy.parameters]
parameter_overrides = "Image=registry/tidemark:1 Vpc=vpc-1 Subnets=subnet-1,subnet-2 Sources=pl-1"
[pipeline.deploy.parameters]
parameter_overrides = 'Streams=agents Schedule="cron(0 4 * * ? *)"'
"""
OUTPUTS = {
    "TableName": "tides-Table", "TableArn": "arn:table", "BucketName": "tides-bucket", "QueuePrefix": "wake-",
}  # fmt: skip


def test_stacks_beside_the_main_one_follow_it_with_its_values(
    sam: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is closed in the main stack is closed in the container by the same command."""
    config = tmp_path / "samconfig.toml"
    stacks = {"tides": OUTPUTS}
    monkeypatch.setattr(deploy, "deployed_outputs", lambda kept: stacks.get(kept["stack_name"], {}))
    deploy.main([], answering("tides", "", "", ""), config)
    with config.open("a") as file:
        file.write(PARTS)
    assert deploy.main(["PublicReadBuckets=news", "EdgeSecretName=/w"], answering(), config) == 0
    assert "run make deploy once more" not in capsys.readouterr().out, "there is no such origin yet"
    *_, main, container, pipeline = map(told, sam.read_text().splitlines())
    assert [each[0] for each in (main, container, pipeline)] == ["tides", "tides-container", "tides-pipeline"]
    assert main[1]["LiveOrigin"] == ""
    shared = {"PublicReadBuckets": "news", "EdgeSecretName": "/w", "AuthSecretName": "/tides/auth-secret"}
    assert (
        container[1].items() >= (OUTPUTS | shared | {"Image": "registry/tidemark:1", "Edge": "true"}).items()
    )
    assert container[1].keys() == CONTAINER["Parameters"].keys()
    assert pipeline[1]["Schedule"] == "cron(0 4 * * ? *)"
    assert pipeline[1].keys() == PIPELINE["Parameters"].keys()
    assert "--template-file container/template.yaml " in sam.read_text()

    # CloudFront can lead to a new container only once it is there.
    made = iter([{}, OUTPUTS, OUTPUTS, {"Origin": "balancer.internal,vo_1"}])
    monkeypatch.setattr(deploy, "deployed_outputs", lambda _kept: next(made))
    assert deploy.main([], answering(), config) == 0
    assert "run make deploy once more" in capsys.readouterr().out

    stacks["tides-container"] = {"Origin": "balancer.internal,vo_1"}
    monkeypatch.setattr(deploy, "deployed_outputs", lambda kept: stacks.get(kept["stack_name"], {}))
    monkeypatch.setattr(deploy, "deployed_parameters", lambda _kept: DEFAULTS)
    assert deploy.main(["--dry-run"], answering(), config) == 0
    *_, main, container, _ = map(told, sam.read_text().splitlines())
    assert main[1]["LiveOrigin"] == "balancer.internal,vo_1"
    assert container[1]["PublicReadBuckets"] == ""
    assert deploy.main(["--remove", "--yes"], answering(), config) == 0
    removed = [line.split()[2] for line in sam.read_text().splitlines()[-3:]]
    assert removed == ["tides", "tides-container", "tides-pipeline"]


def told(line: str) -> tuple[str, dict[str, str]]:
    """The stack's name and the parameters of a run of SAM."""
    given, _, overrides = line.partition("--parameter-overrides ")
    return given.partition("--stack-name ")[2].split()[0], deploy.pairs_of(shlex.split(overrides))


def test_a_part_that_lacks_a_value_is_refused_by_its_name() -> None:
    with pytest.raises(deploy.CannotDeploy, match=r"The container needs Image, .* \[container\.deploy"):
        deploy.parameters_of_part("container", {}, OUTPUTS)
    with pytest.raises(deploy.CannotDeploy, match="no parameter PipelineFold"):
        deploy.parameters_of_part("pipeline", {"PipelineFold": "last-by-key"}, OUTPUTS)


def test_a_parameter_given_on_the_command_line_is_for_that_deployment_alone(
    sam: Path, tmp_path: Path
) -> None:
    config = tmp_path / "samconfig.toml"
    deploy.main([], answering(*GOOD), config)
    kept = config.read_text()
    assert deploy.main(["LogLevel=INFO", "--stack", "tides-2"], answering(), config) == 0
    assert last_overrides(sam)["LogLevel"] == "INFO"
    assert "--stack-name tides-2 --s3-prefix tides-2 " in sam.read_text().splitlines()[-1]
    assert deploy.main([], answering(), config) == 0
    assert last_overrides(sam)["LogLevel"] == "WARNING"
    assert "--stack-name tides --s3-prefix tides " in sam.read_text().splitlines()[-1]
    assert config.read_text() == kept


def test_a_dry_run_changes_no_file(sam: Path, tmp_path: Path) -> None:
    config = tmp_path / "samconfig.toml"
    assert deploy.main(["--dry-run"], answering(*GOOD), config) == 0
    assert "--stack-name tides " in sam.read_text()
    assert not config.exists()


def test_without_credentials_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    config = tmp_path / "samconfig.toml"
    assert deploy.main(["--dry-run"], answering(), config) == 2
    assert "Run `aws configure`" in capsys.readouterr().err
    assert not config.exists()


def test_a_layer_without_bytecode_is_deployed_only_if_asked_for(
    sam: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run shows the change set in any case."""
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "module.py").write_text("")
    monkeypatch.setattr(deploy, "check_bytecode", lambda: CHECK_BYTECODE(layer))
    config = tmp_path / "samconfig.toml"
    assert deploy.main(["--dry-run"], answering(*GOOD), config) == 0
    assert deploy.main(["--without-bytecode"], answering(*GOOD), config) == 0
    deployed = sam.read_text()
    assert deploy.main([], answering(), config) == 2
    assert sam.read_text() == deployed
    assert "--without-bytecode" in capsys.readouterr().err
    (layer / "module.cpython-314.pyc").write_bytes(b"")
    assert deploy.main([], answering(), config) == 0


def test_a_release_that_cannot_read_the_stored_format_is_not_deployed(
    sam: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "samconfig.toml"
    assert deploy.main([], answering(*GOOD), config) == 0
    deployments = sam.read_text()
    monkeypatch.setattr(deploy, "deployed_parameters", lambda _kept: DEFAULTS)
    monkeypatch.setattr(deploy, "stored_format", lambda _kept: FORMAT_EPOCH + 1)
    assert deploy.main([], answering(), config) == 2
    assert f"the table needs {FORMAT_EPOCH + 1}" in capsys.readouterr().err
    assert sam.read_text() == deployments


def test_the_stored_format_is_that_of_the_stacks_own_table(
    services: LocalServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(services)

    class Stack:
        def describe_stack_resource(self, **named: str) -> dict[str, dict[str, str]]:
            assert named == {"StackName": "tides", "LogicalResourceId": "Table"}
            return {"StackResourceDetail": {"PhysicalResourceId": world.table_name}}

    client = boto3.client
    monkeypatch.setattr(
        boto3, "client", lambda name, **named: Stack() if name == "cloudformation" else client(name, **named)
    )
    kept = {"stack_name": "tides", "region": "us-east-1"}
    assert deploy.stored_format(kept) == 0
    world.process().stores.table.put(encode_format(FORMAT_EPOCH + 1))
    with pytest.raises(deploy.CannotDeploy, match="no way back"):
        deploy.check_format(kept)
