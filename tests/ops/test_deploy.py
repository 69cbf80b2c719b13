"""`make deploy`: three questions, once; what is remembered is what the SAM CLI reads."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.infra.test_template import TEMPLATE
from tidemark.ops import deploy


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
    monkeypatch.setattr(deploy, "make_what_is_missing", lambda _kept: None)
    monkeypatch.setattr(deploy, "concurrency_limit", lambda _kept: 1000)
    monkeypatch.setattr(deploy, "check_bytecode", lambda: None)
    return log


@pytest.mark.parametrize(
    ("answers", "parameters"),
    [
        (("", "", ""), {"AuthSecretName": "/tidemark/auth-secret", "Edge": "true"}),
        (("mine us-west-2", "everybody", "no"), {"AllowAnonymous": "true", "Edge": "false"}),
        (
            ("mine", "https://id.example/jwks", "streams", "no"),
            {"AuthJwksUrl": "https://id.example/jwks", "AuthAudience": "streams", "Edge": "false"},
        ),
    ],
)
def test_three_answers_become_the_templates_parameters(
    answers: tuple[str, ...], parameters: dict[str, str]
) -> None:
    """An empty answer takes what is in brackets."""
    assert deploy.ask_three(answering(*answers)).parameters == parameters
    assert parameters.keys() <= TEMPLATE["Parameters"].keys()


def test_the_answers_are_remembered_and_nothing_is_asked_again(sam: Path, tmp_path: Path) -> None:
    config = tmp_path / "samconfig.toml"
    config.write_text('version = 0.1\n\n[prod.deploy.parameters]\nstack_name = "prod"\n')
    assert deploy.main([], answering("tides", "", "no"), config) == 0
    assert deploy.main(["--dry-run"], answering(), config) == 0
    kept = deploy.remembered(config)
    assert kept is not None
    assert (kept["stack_name"], kept["region"]) == ("tides", "eu-north-1")
    assert kept["parameter_overrides"] == "AuthSecretName=/tides/auth-secret Edge=false"
    first, second = sam.read_text().splitlines()
    assert "--no-execute-changeset" not in first
    assert "--no-execute-changeset" in second
    assert 'stack_name = "prod"' in config.read_text()


def test_undeploy_deletes_the_stack_that_is_remembered(sam: Path, tmp_path: Path) -> None:
    config = tmp_path / "samconfig.toml"
    assert deploy.main(["--remove"], answering(), config) == 2
    deploy.main([], answering("tides", "", "no"), config)
    assert config.read_text().startswith("version = 0.1\n"), "sam takes no file without a version"
    assert deploy.main(["--remove", "--yes"], answering(), config) == 0
    assert sam.read_text().splitlines()[-1] == "delete --stack-name tides --region eu-north-1 --no-prompts"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (("a b c",), "a name and a region"),
        (("", "friends"), "'friends' is none of"),
        (("", "https://id.example/jwks", ""), "without an audience"),
        (("", "", "maybe"), "neither yes nor no"),
    ],
)
def test_an_invalid_answer_is_refused_and_nothing_is_saved(
    sam: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], answers: tuple[str, ...], said: str
) -> None:
    config = tmp_path / "samconfig.toml"
    assert deploy.main([], answering(*answers), config) == 2
    assert said in capsys.readouterr().err
    assert not config.exists()
    assert not sam.exists()


def test_an_account_with_room_for_ten_functions_is_warned_of() -> None:
    assert "10 functions at once" in deploy.concurrency_warning(10)
    assert deploy.concurrency_warning(1000) == ""


def test_in_such_an_account_long_polls_last_seconds_only(
    sam: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside what was chosen, and for as long as the account has the limit: nothing of it is remembered."""
    config = tmp_path / "samconfig.toml"
    monkeypatch.setattr(deploy, "concurrency_limit", lambda _kept: 10)
    assert deploy.main([], answering("tides", "", "no"), config) == 0
    first = sam.read_text().splitlines()[-1]
    assert first.endswith(
        "--parameter-overrides AuthSecretName=/tides/auth-secret Edge=false LongPollSeconds=5 SseSeconds=10"
    )
    assert "10 functions at once" in capsys.readouterr().err
    monkeypatch.setattr(deploy, "concurrency_limit", lambda _kept: 1000)
    assert deploy.main([], answering(), config) == 0
    assert "--parameter-overrides" not in sam.read_text().splitlines()[-1]


def test_a_long_poll_duration_that_was_chosen_is_kept() -> None:
    kept = {"parameter_overrides": 'LongPollSeconds=20 PipelineSchedule="cron(15 3 * * ? *)"'}
    given = deploy.overrides_of(kept)
    assert given == {"LongPollSeconds": "20", "PipelineSchedule": "cron(15 3 * * ? *)"}
    assert deploy.short_waits(10, given) == {"SseSeconds": "10"}
    assert deploy.short_waits(1000, given) == {}
    bounds = {name: TEMPLATE["Parameters"][name] for name in deploy.short_waits(10, {})}
    for name, value in deploy.short_waits(10, {}).items():
        assert bounds[name]["MinValue"] <= int(value) < bounds[name]["Default"]


def test_a_layer_without_bytecode_is_not_deployed_unasked(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("")
    with pytest.raises(deploy.CannotDeploy, match="--without-bytecode"):
        deploy.check_bytecode(tmp_path)
    (tmp_path / "module.cpython-314.pyc").write_bytes(b"")
    deploy.check_bytecode(tmp_path)


def test_a_layer_without_bytecode_is_deployed_if_asked_for(
    sam: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run shows the change set in any case."""

    def refuse() -> None:
        raise deploy.CannotDeploy("no bytecode")

    monkeypatch.setattr(deploy, "check_bytecode", refuse)
    config = tmp_path / "samconfig.toml"
    assert deploy.main(["--dry-run"], answering("tides", "", "no"), config) == 0
    assert deploy.main(["--without-bytecode"], answering(), config) == 0
    deployed = sam.read_text()
    assert deploy.main([], answering(), config) == 2
    assert sam.read_text() == deployed
    assert "no bytecode" in capsys.readouterr().err
