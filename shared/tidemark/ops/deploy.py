"""`python -m tidemark.ops.deploy`: the first deployment asks four questions; later ones ask nothing.

The answers are kept as `[default.deploy.parameters]` of samconfig.toml. Every deployment names every
parameter of the template, with its default where samconfig.toml does not name it: SAM leaves those that are
not named as they were. `Name=value` is for this deployment alone. `--dry-run` shows the change set and
changes nothing, files included; `--remove` deletes the stack and leaves its data.

The container and the pipeline are stacks of their own, `<stack>-container` and `<stack>-pipeline`. Each is
deployed after the main one if samconfig.toml has a section for it (`[container.deploy.parameters]`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidemark.log.schema import FORMAT_EPOCH, FORMAT_KEY, decode_format

CONFIG: Final = Path("samconfig.toml")
TEMPLATE: Final = Path("template.yaml")
SECTION: Final = "default"
#: Stacks beside the main one: the folder with each one's template, and the section with its parameters.
PARTS: Final = ("container", "pipeline")
#: The layer that `make build` makes.
LAYER: Final = Path(".aws-sam/build/SharedLayer")
#: Parameters for an account that has too few to reserve some (new ones may start at ten): a writer that found
#: no environment free is let in within seconds.
_SHORT_WAITS: Final = {"LongPollSeconds": "5", "SseSeconds": "10"}
#: Reserved for each of two functions: readers wait in one, and the other answers plain reads.
_READERS: Final = "ReaderConcurrency"
#: Lambda keeps these for functions without a reservation, and refuses a reservation that takes them.
_UNRESERVABLE: Final = 100
#: With fewer, plain reads would suffer more than the other functions gain.
_WORTH_RESERVING: Final = 25

Ask = Callable[[str], str]


class CannotDeploy(Exception):
    """The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class SignedInAccount:
    """The account of the credentials."""

    partition: str
    number: str


@dataclass(frozen=True, slots=True)
class ConcurrencyLimit:
    """How many functions the account runs at once, and how many of them nobody has reserved."""

    limit: int
    unreserved: int


@dataclass(frozen=True, slots=True)
class FirstDeployment:
    """The answers to the four questions. `parameters` are the template's."""

    stack: str
    region: str
    parameters: dict[str, str]
    #: Gets the alarms, from a topic that is made for them.
    email: str = ""

    def as_toml(self) -> str:
        overrides = " ".join(f"{name}={value}" for name, value in self.parameters.items())
        return (
            f"\n[{SECTION}.deploy.parameters]\n"
            f'stack_name = "{self.stack}"\n'
            f'region = "{self.region}"\n'
            "resolve_s3 = true\n"
            f's3_prefix = "{self.stack}"\n'
            'capabilities = "CAPABILITY_IAM"\n'
            "confirm_changeset = true\n"
            f'parameter_overrides = "{overrides}"\n'
            f'tags = "application=tidemark"\n'
        )


def remembered(config: Path, section: str = SECTION) -> dict[str, Any] | None:
    """The parameters of the last guided deployment, or those written down for a part; else None."""
    if not config.exists():
        return None
    kept = tomllib.loads(config.read_text()).get(section, {}).get("deploy", {}).get("parameters")
    return None if kept is None else dict(kept)


def parts_of(config: Path) -> list[str]:
    return [part for part in PARTS if remembered(config, part) is not None]


def save(first: FirstDeployment, config: Path) -> dict[str, Any]:
    if not config.exists():
        config.write_text("version = 0.1\n")
    with config.open("a") as file:
        file.write(first.as_toml())
    return remembered(config) or {}


# --- the questions -----------------------------------------------------------------------------------------


def ask_first(ask: Ask, account: SignedInAccount) -> FirstDeployment:
    """Name and region; who may come in; CloudFront or not; who gets the alarms. An empty answer takes the
    one in brackets."""
    given = ask(f"1. Stack name and region [tidemark {own_region()}]: ").split()
    if len(given) > 2:
        raise CannotDeploy("a name and a region, for example: tidemark eu-central-1")
    stack, region = ([*given, *["tidemark", own_region()][len(given) :]])[:2]
    who = ask("2. Who may come in? tokens (signed by a secret that is made now), the https:// URL of an "
              "identity provider's keys, or everybody [tokens]: ").strip() or "tokens"  # fmt: skip
    access = access_parameters(who, stack, ask)
    edge = (
        ask("3. CloudFront in front (it caches reads and streams events)? yes or no [yes]: ").strip() or "yes"
    )
    if edge not in ("yes", "no"):
        raise CannotDeploy(f"{edge!r} is neither yes nor no")
    told = ask(
        "4. Who gets the alarms? an e-mail address, the ARN of an SNS topic, or nobody [nobody]: "
    ).strip()
    topic, email = alarm_topic(told, f"arn:{account.partition}:sns:{region}:{account.number}:{stack}-alarms")
    chosen = {**access, "Edge": "true" if edge == "yes" else "false", **topic, "Protected": "true"}
    return FirstDeployment(stack, region, chosen, email)


def own_region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def access_parameters(who: str, stack: str, ask: Ask) -> dict[str, str]:
    if who == "tokens":
        return {"AuthSecretName": f"/{stack}/auth-secret"}
    if who == "everybody":
        return {"AllowAnonymous": "true"}
    if who.startswith("https://"):
        audience = ask("   The aud claim of its tokens: ").strip()
        if not audience:
            raise CannotDeploy(
                "without an audience, tokens for the provider's other services would be accepted"
            )
        return {"AuthJwksUrl": who, "AuthAudience": audience}
    raise CannotDeploy(f"{who!r} is none of: tokens, https://…, everybody")


def alarm_topic(told: str, made: str) -> tuple[dict[str, str], str]:
    """The parameter, and the address that the topic named `made` is for."""
    if told in ("", "nobody"):
        return {}, ""
    if told.startswith("arn:"):
        return {"AlarmTopicArn": told}, ""
    if re.fullmatch(r"[^@\s]+@[^@\s]+", told):
        return {"AlarmTopicArn": made}, told
    raise CannotDeploy(f"{told!r} is neither an e-mail address, nor arn:…, nor nobody")


# --- what a deployment says --------------------------------------------------------------------------------


def declared_parameters(template: Path) -> dict[str, dict[str, Any]]:
    import yaml

    # That section alone: the others have tags that are CloudFormation's own.
    section = re.search(r"^Parameters:\n(?:[ #].*\n|\n)+", template.read_text(), re.MULTILINE)
    return dict(yaml.safe_load(section[0])["Parameters"]) if section else {}


def defaults(template: Path = TEMPLATE) -> dict[str, str]:
    """Each parameter of the template with its default; empty if it has none."""
    return {name: str(each.get("Default", "")) for name, each in declared_parameters(template).items()}


def overrides_of(kept: Mapping[str, Any]) -> dict[str, str]:
    """The template's parameters that samconfig.toml names."""
    return pairs_of(shlex.split(str(kept.get("parameter_overrides", ""))))


def pairs_of(texts: Sequence[str]) -> dict[str, str]:
    for each in texts:
        if "=" not in each:
            raise CannotDeploy(f"{each!r} is not Name=value")
    return dict(each.split("=", 1) for each in texts)


def every_parameter(
    chosen: Mapping[str, str], deployed: Mapping[str, str], concurrency: ConcurrencyLimit
) -> dict[str, str]:
    """All that the template has: as chosen, or as the account's limit asks for, or the default."""
    usual = defaults()
    check_names(chosen, usual)
    reserved = reservations(chosen, deployed, concurrency)
    is_bounded = bool(reserved) or _READERS in chosen
    bounds = {} if is_bounded else _SHORT_WAITS
    return {**usual, **bounds, **reserved, **chosen}


def check_names(chosen: Mapping[str, str], usual: Mapping[str, str]) -> None:
    """Raises CannotDeploy for a parameter that the template does not have."""
    if unknown := sorted(chosen.keys() - usual.keys()):
        raise CannotDeploy(
            f"The template has no parameter {', '.join(unknown)}: take it out of {CONFIG} "
            "(CHANGELOG.md says what became of it)"
        )


def parameters_of_part(part: str, chosen: Mapping[str, str], main: Mapping[str, str]) -> dict[str, str]:
    """All that a part's template has: as chosen, or as the main stack has it, or the default."""
    usual = defaults(Path(part) / TEMPLATE)
    check_names(chosen, usual)
    values = {name: chosen.get(name, main.get(name, default)) for name, default in usual.items()}
    declared = declared_parameters(Path(part) / TEMPLATE)
    if missing := [name for name, each in declared.items() if "Default" not in each and not values[name]]:
        raise CannotDeploy(
            f"The {part} needs {', '.join(missing)}: write it into parameter_overrides of "
            f"[{part}.deploy.parameters] in {CONFIG}"
        )
    return values


def reservations(
    chosen: Mapping[str, str], deployed: Mapping[str, str], concurrency: ConcurrencyLimit
) -> dict[str, str]:
    """At most half of the account for the two functions that readers reach. A reservation is a limit too:
    without one, waiting readers could take what every other function of the account needs."""
    if _READERS in chosen:
        return {}
    # Earlier releases had a parameter for each function.
    own = sum(
        int(value) * (2 if name == _READERS else 1)
        for name, value in deployed.items()
        if name.endswith("Concurrency")
    )
    free = concurrency.unreserved + own - _UNRESERVABLE
    each = min(concurrency.limit // 2, free) // 2
    return {_READERS: str(each)} if each >= _WORTH_RESERVING else {}


def differences(values: Mapping[str, str], deployed: Mapping[str, str], usual: Mapping[str, str]) -> str:
    """A table of the parameters that are not their defaults, or not what is deployed."""
    rows = [("parameter", "default", "deployed", "now")]
    for name, value in values.items():
        before = deployed.get(name, usual[name] if deployed else "-")
        if value != usual[name] or (deployed and value != before):
            changes = "  <- changes" if deployed and value != before else ""
            rows.append((name, usual[name] or '""', before or '""', (value or '""') + changes))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join([*map(str.ljust, row, widths), row[3]]) for row in rows]
    return "\n".join([*lines, "Every other parameter is its default."])


def as_override(name: str, value: str) -> str:
    """A parameter override as SAM parses it: values with spaces, and empty ones, are quoted."""
    return f"{name}={value}" if re.fullmatch(r'[^\s"\\]+', value) else f"{name}={json.dumps(value)}"


def concurrency_warning(values: Mapping[str, str], concurrency: ConcurrencyLimit) -> str:
    """Empty if the readers' share of the account's concurrent executions is bounded."""
    if values[_READERS] != "0":
        return ""
    return (
        f"This account runs {concurrency.limit} functions at once, of which {concurrency.unreserved} are not "
        "reserved: too few to bound the readers' share. Each waiting reader takes one, so as many stop every "
        "writer. Ask for more, which is free:\n  aws service-quotas request-service-quota-increase "
        "--service-code lambda --quota-code L-B99A9384 --desired-value 1000\n"
        f"Until then readers wait for seconds only: {_SHORT_WAITS}"
    )


def warnings_of(values: Mapping[str, str], concurrency: ConcurrencyLimit) -> Iterator[str]:
    if said := concurrency_warning(values, concurrency):
        yield said
    if not values["AlarmTopicArn"]:
        yield "AlarmTopicArn is empty: nobody is told when something fails."
    if values["Protected"] != "true":
        yield "Protected is false: one call deletes the table."


def check_bytecode(layer: Path = LAYER) -> None:
    """Raises CannotDeploy for a layer that was built without the runtime's Python."""
    if layer.is_dir() and not any(layer.rglob("*.pyc")):
        raise CannotDeploy(
            "The layer has no bytecode, so every cold start would compile every module: 2.5 times the CPU. "
            "Install the runtime's Python (make build says which) and build again, or deploy it as it is: "
            "make deploy ARGS=--without-bytecode"
        )


# --- the account -------------------------------------------------------------------------------------------


def signed_in(region: str | None) -> SignedInAccount:
    """Raises CannotDeploy if AWS does not take the credentials, or there are none."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        arn = boto3.client("sts", region_name=region or own_region()).get_caller_identity()["Arn"]
    except (BotoCoreError, ClientError) as error:
        raise CannotDeploy(
            f"AWS credentials are missing or not accepted ({error}). Run `aws configure`, or set "
            "AWS_PROFILE. Nothing was asked, changed or saved."
        ) from error
    _, partition, _, _, number, _ = arn.split(":", 5)
    return SignedInAccount(partition, number)


def concurrency_of(kept: Mapping[str, Any]) -> ConcurrencyLimit:
    import boto3

    account = boto3.client("lambda", region_name=kept.get("region")).get_account_settings()["AccountLimit"]
    limit = account["ConcurrentExecutions"]
    return ConcurrencyLimit(limit, account.get("UnreservedConcurrentExecutions", limit))


def deployed_parameters(kept: Mapping[str, Any]) -> dict[str, str]:
    """The parameters of the deployed stack; none if there is no stack yet."""
    listed = deployed_stack(kept).get("Parameters", [])
    return {each["ParameterKey"]: each["ParameterValue"] for each in listed}


def deployed_outputs(kept: Mapping[str, Any]) -> dict[str, str]:
    return {each["OutputKey"]: each["OutputValue"] for each in deployed_stack(kept).get("Outputs", [])}


def deployed_stack(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The stack as CloudFormation describes it; empty if there is no stack yet."""
    import boto3
    from botocore.exceptions import ClientError

    cloudformation = boto3.client("cloudformation", region_name=kept.get("region"))
    try:
        return dict(cloudformation.describe_stacks(StackName=kept["stack_name"])["Stacks"][0])
    except ClientError as error:
        if error.response["Error"]["Code"] != "ValidationError":  # CloudFormation's word for "there is none"
            raise
        return {}


def stored_format(kept: Mapping[str, Any]) -> int:
    """The least format epoch of a release that may use the stack's table."""
    import boto3

    region, stack = kept.get("region"), kept["stack_name"]
    table = boto3.client("cloudformation", region_name=region).describe_stack_resource(
        StackName=stack, LogicalResourceId="Table"
    )["StackResourceDetail"]["PhysicalResourceId"]
    found = boto3.client("dynamodb", region_name=region).get_item(
        TableName=table, Key=FORMAT_KEY, ConsistentRead=True
    )
    return decode_format(found.get("Item"))


def check_format(kept: Mapping[str, Any]) -> None:
    """Raises CannotDeploy for a release that would serve a later format as data."""
    from botocore.exceptions import ClientError

    try:
        least = stored_format(kept)
    except ClientError as error:
        if error.response["Error"]["Code"] in {"ValidationError", "ResourceNotFoundException"}:
            return  # The stack has no table (yet).
        raise CannotDeploy(
            f"Whether this release can read the table's format cannot be told: {error}. It takes the rights "
            "cloudformation:DescribeStackResource and dynamodb:GetItem."
        ) from error
    if least > FORMAT_EPOCH:
        raise CannotDeploy(
            f"This release reads format {FORMAT_EPOCH}, and the table needs {least}: there is no way back "
            "to this release (docs/internals/packs.md). Nothing was changed."
        )


def make_what_is_missing(kept: Mapping[str, Any], chosen: Mapping[str, str], email: str) -> None:
    """Create the resources that the template cannot: secrets, and a topic that several stacks may use."""
    import boto3

    region = kept.get("region")
    ssm = boto3.client("ssm", region_name=region)
    if name := chosen.get("AuthSecretName"):
        made = make_secret(name, ssm)
        print(f"{'Made' if made else 'Found'} the secret {name}. Tokens: make token SECRET_NAME={name}")
    # No SecureString: CloudFormation does not resolve one for a header of CloudFront's.
    if (name := chosen.get("EdgeSecretName")) and make_secret(name, ssm, "String"):
        print(f"Made the origin secret {name}")
    if email:
        sns = boto3.client("sns", region_name=region)
        topic = sns.create_topic(Name=chosen["AlarmTopicArn"].rpartition(":")[2])["TopicArn"]
        sns.subscribe(TopicArn=topic, Protocol="email", Endpoint=email)
        print(f"{email} gets the alarms once the link in AWS's mail to it was opened ({topic})")


def make_secret(name: str, ssm: Any, kind: str = "SecureString") -> bool:
    """Put a new secret under `name`, unless there is one. Returns whether it was made."""
    try:
        ssm.put_parameter(Name=name, Type=kind, Value=secrets.token_hex(32), Overwrite=False)
    except ssm.exceptions.ParameterAlreadyExists:
        return False
    return True


def run_sam(*arguments: str) -> int:
    return subprocess.run([os.environ.get("SAM", "sam"), *arguments], check=False).returncode  # noqa: S603


# --- the commands ------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None, ask: Ask = input, config: Path = CONFIG) -> int:
    parser = argparse.ArgumentParser(prog="python -m tidemark.ops.deploy", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="show the change set, change nothing")
    parser.add_argument("--remove", action="store_true", help="delete the stack; table and bucket stay")
    parser.add_argument("--yes", action="store_true", help="do not ask before the change set is executed")
    parser.add_argument("--without-bytecode", action="store_true", help="deploy a layer that has none")
    parser.add_argument("--stack", help="another stack with the same parameters, as for a restore")
    parser.add_argument("parameters", nargs="*", metavar="Name=value", help="for this deployment alone")
    given = parser.parse_args(arguments)
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        kept = remembered(config) or None
        if given.remove:
            return remove(kept, config, yes=given.yes)
        with tempfile.TemporaryDirectory() as scratch:
            return deploy(given, kept, ask, config, Path(scratch) / CONFIG.name)
    except CannotDeploy as refusal:
        print(refusal, file=sys.stderr)
    except (BotoCoreError, ClientError) as error:
        print(
            f"AWS refused a call, or was not reached: {error}. Give these credentials the right that it "
            "names, and run the command again; what was not saved is asked again.",
            file=sys.stderr,
        )
    except EOFError:
        print("Nobody answers the questions: run `make deploy` in a terminal, once.", file=sys.stderr)
    return 2


def deploy(
    given: argparse.Namespace, kept: dict[str, Any] | None, ask: Ask, config: Path, scratch: Path
) -> int:
    """`scratch` is where a dry run keeps what it was answered, for SAM to read."""
    account = signed_in((kept or {}).get("region"))
    first = None
    if kept is None:
        first = ask_first(ask, account)
        kept = save(first, scratch)
    name = given.stack or kept["stack_name"]
    kept |= {"stack_name": name, "s3_prefix": name}
    chosen = overrides_of(kept) | pairs_of(given.parameters)
    parts = parts_of(config)
    if "container" in parts:
        chosen = {"LiveOrigin": live_origin(kept), **chosen}
    deployed, concurrency = deployed_parameters(kept), concurrency_of(kept)
    if deployed:
        check_format(kept)
    values = every_parameter(chosen, deployed, concurrency)
    if not given.dry_run:
        if not given.without_bytecode:
            check_bytecode()
        make_what_is_missing(kept, values, first.email if first else "")
        if first:
            save(first, config)
    print(differences(values, deployed, defaults()), flush=True)
    for warning in warnings_of(values, concurrency):
        print(warning, file=sys.stderr)
    how = ["--no-execute-changeset"] if given.dry_run else ["--no-confirm-changeset"] if given.yes else []
    how = [
        *how,
        "--config-file",
        str((scratch if first else config).resolve()),
        "--no-fail-on-empty-changeset",
    ]
    code = deploy_stack(name, values, how)
    if code or (given.dry_run and not deployed):  # Without a main stack nothing stands beside it.
        return code
    return deploy_parts(parts, kept, values, config, how)


def deploy_stack(name: str, values: Mapping[str, str], how: Sequence[str]) -> int:
    return run_sam(
        "deploy", *how, "--stack-name", name, "--s3-prefix", name,
        "--parameter-overrides", *map(as_override, values, values.values()),
    )  # fmt: skip


def deploy_parts(
    parts: Sequence[str],
    kept: Mapping[str, Any],
    main: Mapping[str, str],
    config: Path,
    how: Sequence[str],
) -> int:
    for part in parts:
        if code := deploy_part(part, kept, main, config, how):
            return code
    if "container" in parts and live_origin(kept) != main["LiveOrigin"]:
        print("The container runs, and CloudFront does not lead to it yet: run make deploy once more.")
    return 0


def deploy_part(
    part: str, kept: Mapping[str, Any], main: Mapping[str, str], config: Path, how: Sequence[str]
) -> int:
    """`main` are the main stack's parameters; its outputs say the rest."""
    own = part_named(part, kept)
    values = parameters_of_part(
        part, overrides_of(remembered(config, part) or {}), {**main, **deployed_outputs(kept)}
    )
    print(f"\n{own['stack_name']}:")
    print(differences(values, deployed_parameters(own), defaults(Path(part) / TEMPLATE)), flush=True)
    template = [
        "--template-file",
        str(Path(part) / TEMPLATE),
        "--tags",
        "application=tidemark",
        f"part={part}",
    ]
    return deploy_stack(own["stack_name"], values, [*template, *how])


def part_named(part: str, kept: Mapping[str, Any]) -> dict[str, Any]:
    return {**kept, "stack_name": f"{kept['stack_name']}-{part}"}


def live_origin(kept: Mapping[str, Any]) -> str:
    """How CloudFront reaches the container; nothing until the container is deployed."""
    return deployed_outputs(part_named("container", kept)).get("Origin", "")


def remove(kept: dict[str, Any] | None, config: Path, *, yes: bool) -> int:
    if kept is None:
        raise CannotDeploy(f"{config} remembers no deployment")
    code = 0
    # The main one first: CloudFront lets go of the container's origin with it.
    for stack in (kept, *(part_named(part, kept) for part in parts_of(config))):
        where = ["--stack-name", str(stack["stack_name"]), "--region", str(stack["region"])]
        code = code or run_sam("delete", *where, *(["--no-prompts"] if yes else []))
    if code == 0:
        print("Table and bucket stay, with your data; docs/operations/deploy.md says how to delete them.")
    return code


if __name__ == "__main__":
    sys.exit(main())
