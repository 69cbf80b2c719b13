"""`make deploy`: checks what people cannot see, then runs `sam deploy` for the stacks of samconfig.toml.

Every parameter of the template is named to SAM, with its default where samconfig.toml does not name it: SAM
leaves those that are not named as they were deployed. It refuses a parameter or a value that the template
does not take, the name of a secret that is not there, a release that cannot read the table's format, and a
layer without bytecode. It shows which parameters change, and what the account's limit means for readers.

`Name=value` is for this deployment alone. Other options are those of `sam deploy`: `--no-execute-changeset`
shows the change set and changes nothing, `--no-confirm-changeset` does not ask.

The container and the pipeline are stacks of their own, `<stack>-container` and `<stack>-pipeline`, deployed
after the main one if samconfig.toml has a section for them (`[container.deploy.parameters]`).
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import boto3
import yaml
from botocore.exceptions import BotoCoreError, ClientError

from tidemark.cli.terminal import columns
from tidemark.log.schema import FORMAT_EPOCH, FORMAT_KEY, decode_format

CONFIG: Final = Path("samconfig.toml")
TEMPLATE: Final = Path("template.yaml")
#: Stacks beside the main one: the folder of each one's template, and the section with its parameters.
PARTS: Final = ("container", "pipeline")
#: The layer that `make build` makes.
LAYER: Final = Path(".aws-sam/build/SharedLayer")
#: Lambda keeps these for functions without a reservation, and refuses a reservation that takes them.
_UNRESERVABLE: Final = 100
#: With fewer, plain reads would suffer more than the other functions gain.
_WORTH_RESERVING: Final = 25


class CannotDeploy(Exception):
    """The message says why, and what to do."""


# --- parameters ---


def sections_of(config: Path) -> dict[str, dict[str, Any]]:
    """The deploy parameters of each stack in samconfig.toml: of `default`, and of its parts."""
    sections = tomllib.loads(config.read_text()) if config.exists() else {}
    deployments = {name: section.get("deploy", {}) for name, section in sections.items() if name != "version"}
    found = {name: each["parameters"] for name, each in deployments.items() if "parameters" in each}
    if "stack_name" not in found.get("default", {}):
        raise CannotDeploy(f"{config} names no stack: write stack_name into [default.deploy.parameters]")
    return found


def overrides_of(section: Mapping[str, Any]) -> dict[str, str]:
    """The template's parameters that a section names."""
    named = section.get("parameter_overrides", "")
    return pairs_of(named if isinstance(named, list) else shlex.split(named))


def pairs_of(texts: Sequence[str]) -> dict[str, str]:
    for each in texts:
        if "=" not in each:
            raise CannotDeploy(f"{each!r} is not Name=value")
    return dict(each.split("=", 1) for each in texts)


def declared_parameters(template: Path) -> dict[str, dict[str, Any]]:
    # That section alone: the others have tags that are CloudFormation's own.
    section = re.search(r"^Parameters:\n(?:[ #].*\n|\n)+", template.read_text(), re.MULTILINE)
    return dict(yaml.safe_load(section[0])["Parameters"]) if section else {}


def every_parameter(
    template: Path, chosen: Mapping[str, str], inherited: Mapping[str, str]
) -> dict[str, str]:
    """All that the template has: as chosen, or as another stack has it, or the default."""
    declared = declared_parameters(template)
    for name in chosen.keys() - declared.keys():
        close = difflib.get_close_matches(name, declared, 1)
        hint = f"did you mean {close[0]}?" if close else "CHANGELOG.md says what became of it"
        raise CannotDeploy(f"{template} has no parameter {name}: {hint}")
    known = {name: str(each.get("Default", "")) for name, each in declared.items()} | {**inherited, **chosen}
    values = {name: known[name] for name in declared}
    for name, value in values.items():
        if right := expectation(declared[name], value):
            raise CannotDeploy(f"{name} of {template} must be {right}, got {value!r}")
    return values


def expectation(declared: Mapping[str, Any], value: str) -> str:
    """A description of the values that would be right; empty if the value is right."""
    allowed = [str(each) for each in declared.get("AllowedValues", ())]
    if allowed and value not in allowed:
        return f"one of {', '.join(allowed)}"
    if declared["Type"] == "Number":
        least, most = declared.get("MinValue", 0), declared.get("MaxValue")
        if not value.isdecimal() or int(value) < least or (most is not None and int(value) > most):
            return f"a number from {least}" + (f" to {most}" if most is not None else "")
    if not re.search(declared.get("AllowedPattern", ""), value):
        return f"a text that matches {declared['AllowedPattern']}"
    return "" if value or "Default" in declared else "set in parameter_overrides"


def differences(template: Path, values: Mapping[str, str], deployed: Mapping[str, str]) -> str:
    """A table of the parameters that are not their defaults, or not what is deployed."""
    rows = []
    for name, declared in declared_parameters(template).items():
        default, value = str(declared.get("Default", "")), values[name]
        before = deployed.get(name, default) if deployed else "-"
        is_changed = bool(deployed) and value != before
        if value != default or is_changed:
            now = (value or '""') + ("  <- changes" if is_changed else "")
            rows.append((name, default or '""', before or '""', now))
    table = columns(("parameter", "default", "deployed", "now"), rows)
    return "\n".join([*table, "Every other parameter is its default."])


# --- what is checked ---


def check_bytecode(layer: Path = LAYER) -> None:
    """Raises CannotDeploy for a layer that was built without the runtime's Python."""
    if layer.is_dir() and not any(layer.rglob("*.pyc")):
        raise CannotDeploy(
            "The layer has no bytecode, so every cold start would compile every module: 2.5 times the CPU. "
            "Install the runtime's Python (make build says which) and build again, or deploy it as it is: "
            "make deploy ARGS=--without-bytecode"
        )


def check_format(table: str, region: str | None) -> None:
    """Raises CannotDeploy for a release that would serve a later format as data."""
    asked = {"TableName": table, "Key": FORMAT_KEY, "ConsistentRead": True}
    least = decode_format(boto3.client("dynamodb", region_name=region).get_item(**asked).get("Item"))
    if least > FORMAT_EPOCH:
        raise CannotDeploy(
            f"This release reads format {FORMAT_EPOCH}, and the table needs {least}: there is no way back "
            "to this release (docs/internals/packs.md). Nothing was changed."
        )


def check_secrets(values: Mapping[str, str], region: str | None) -> None:
    """Raises CannotDeploy for the name of an SSM parameter that is not there."""
    ssm = boto3.client("ssm", region_name=region)
    # CloudFormation does not resolve a SecureString for a header of CloudFront's.
    for parameter, kind in (("AuthSecretName", "SecureString"), ("EdgeSecretName", "String")):
        name = values[parameter]
        if name and not ssm.get_parameters(Names=[name])["Parameters"]:
            raise CannotDeploy(
                f"{parameter} must name an SSM parameter, and there is no {name}. Make it: aws ssm "
                f"put-parameter --name {name} --type {kind} --value $(openssl rand -hex 32)"
            )


def concurrency_warning(values: Mapping[str, str], region: str | None) -> str:
    """Empty if the readers' share of the account's concurrent executions is bounded."""
    if values["ReaderConcurrency"] != "0":
        return ""
    limits = boto3.client("lambda", region_name=region).get_account_settings()["AccountLimit"]
    limit = limits["ConcurrentExecutions"]
    # At most half of the account for the three functions that readers reach, and what others have left.
    each = min(limit // 2, limits.get("UnreservedConcurrentExecutions", limit) - _UNRESERVABLE) // 3
    advice = f"Bound them: ReaderConcurrency={each}"
    if each < _WORTH_RESERVING:
        advice = (
            "Too few are left to reserve some. Let readers wait for seconds only (LongPollSeconds=5 "
            "SseSeconds=10), and ask for more, which is free:\n  aws service-quotas request-service-quota-"
            "increase --service-code lambda --quota-code L-B99A9384 --desired-value 1000"
        )
    return (
        f"This account runs {limit} functions at once. Each waiting reader takes one, so as many stop every "
        f"writer. {advice}"
    )


# --- stacks ---


def described(name: str, region: str | None) -> dict[str, str]:
    """The parameters and outputs of a stack, whose names differ; empty if there is no stack yet."""
    cloudformation = boto3.client("cloudformation", region_name=region)
    try:
        [found] = cloudformation.describe_stacks(StackName=name)["Stacks"]
    except ClientError as error:
        if error.response["Error"]["Code"] != "ValidationError":  # CloudFormation's word for "there is none".
            raise
        return {}
    values = {each["ParameterKey"]: each["ParameterValue"] for each in found.get("Parameters", [])}
    return values | {each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", [])}


def deploy(given: argparse.Namespace, how: Sequence[str], config: Path) -> int:
    """SAM's exit code."""
    sections = sections_of(config)
    main = sections["default"]
    name, region = given.stack or main["stack_name"], main.get("region")
    before, container = described(name, region), described(f"{name}-container", region)
    # How CloudFront reaches the container; nothing until the container is deployed.
    inherited = {"LiveOrigin": container.get("Origin", "")} if "container" in sections else {}
    values = every_parameter(TEMPLATE, overrides_of(main) | pairs_of(given.parameters), inherited)
    check_secrets(values, region)
    if "TableName" in before:
        check_format(before["TableName"], region)
    if not given.without_bytecode:
        check_bytecode()
    print(differences(TEMPLATE, values, before), flush=True)
    if warning := concurrency_warning(values, region):
        print(warning, file=sys.stderr)
    code = deploy_stack(name, values, how)
    for part in (each for each in PARTS if each in sections):
        code = code or deploy_part(part, sections, name, how)
    return code


def deploy_part(part: str, sections: Mapping[str, dict[str, Any]], name: str, how: Sequence[str]) -> int:
    """`name` is the main stack's, whose parameters and outputs count here too."""
    region = sections["default"].get("region")
    main, own, template = described(name, region), f"{name}-{part}", Path(part) / TEMPLATE
    if not main:
        print(f"{name} is not deployed yet: the {part} follows it.")
        return 0
    values = every_parameter(template, overrides_of(sections[part]), main)
    print(f"\n{own}:\n{differences(template, values, described(own, region))}", flush=True)
    tags = ["--tags", "application=tidemark", f"part={part}"]
    return deploy_stack(own, values, ["--template-file", str(template), *tags, *how])


def deploy_stack(name: str, values: Mapping[str, str], how: Sequence[str]) -> int:
    overrides = map(as_override, values, values.values())
    where = ["--stack-name", name, "--s3-prefix", name]
    return run_sam("deploy", *how, *where, "--parameter-overrides", *overrides)


def remove(given: argparse.Namespace, how: Sequence[str], config: Path) -> int:
    """SAM's exit code. The main stack first: CloudFront lets go of the container's origin with it."""
    sections = sections_of(config)
    main, code = sections["default"], 0
    name, where = given.stack or main["stack_name"], ["--region", main["region"]] if "region" in main else []
    for stack in (name, *(f"{name}-{part}" for part in PARTS if part in sections)):
        code = code or run_sam("delete", "--stack-name", stack, *where, *how)
    return code


def run_sam(*command: str) -> int:
    return subprocess.run([os.environ.get("SAM", "sam"), *command], check=False).returncode  # noqa: S603


def as_override(name: str, value: str) -> str:
    """A parameter override as SAM parses it: values with spaces, and empty ones, are quoted."""
    return f"{name}={value}" if re.fullmatch(r'[^\s"\\]+', value) else f"{name}={json.dumps(value)}"


def main(arguments: Sequence[str] | None = None, config: Path = CONFIG) -> int:
    parser = argparse.ArgumentParser(prog="python -m tidemark.ops.deploy", description=__doc__)
    parser.add_argument("--without-bytecode", action="store_true", help="deploy a layer that has none")
    parser.add_argument("--stack", help="another stack with the same parameters, as for a restore")
    parser.add_argument("parameters", nargs="*", metavar="Name=value", help="for this deployment alone")
    parser.add_argument("--remove", action="store_true", help="delete the stacks; table and bucket stay")
    given, of_sam = parser.parse_known_intermixed_args(arguments)
    how = ["--config-file", str(config.resolve()), "--no-fail-on-empty-changeset", *of_sam]
    try:
        return remove(given, of_sam, config) if given.remove else deploy(given, how, config)
    except CannotDeploy as refusal:
        print(refusal, file=sys.stderr)
    except ValueError as wrong:
        print(f"{config} cannot be read: {wrong}", file=sys.stderr)
    except (BotoCoreError, ClientError) as error:
        print(f"AWS refused a call, or was not reached: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
