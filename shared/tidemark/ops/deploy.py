"""`python -m tidemark.ops.deploy`: the first deployment in three questions; later ones ask nothing.

The answers are kept as `[default.deploy.parameters]` of samconfig.toml, which the SAM CLI reads. `--dry-run`
shows the change set and changes nothing; `--remove` deletes the stack and leaves its data.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

CONFIG: Final = Path("samconfig.toml")
SECTION: Final = "default"
#: Where `make build` puts the layer.
LAYER: Final = Path(".aws-sam/build/SharedLayer")
#: New accounts may start at ten; waiting readers then stop every writer.
_ENOUGH_CONCURRENCY: Final = 100
#: Parameters for an account with less: a writer that found no environment free is let in within seconds.
_SHORT_WAITS: Final = {"LongPollSeconds": "5", "SseSeconds": "10"}

Ask = Callable[[str], str]


class CannotDeploy(Exception):
    """The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class FirstDeployment:
    """What the three questions decide. `parameters` are the template's."""

    stack: str
    region: str
    parameters: dict[str, str]

    def as_toml(self) -> str:
        overrides = " ".join(f"{name}={value}" for name, value in self.parameters.items())
        return (
            f"\n[{SECTION}.deploy.parameters]\n"
            f'stack_name = "{self.stack}"\n'
            f'region = "{self.region}"\n'
            "resolve_s3 = true\n"
            f's3_prefix = "{self.stack}"\n'
            'capabilities = "CAPABILITY_IAM CAPABILITY_AUTO_EXPAND"\n'
            "confirm_changeset = true\n"
            f'parameter_overrides = "{overrides}"\n'
            f'tags = "application=tidemark"\n'
        )


def remembered(config: Path) -> dict[str, Any] | None:
    """The parameters of the last guided deployment, or None."""
    if not config.exists():
        return None
    kept = tomllib.loads(config.read_text()).get(SECTION, {}).get("deploy", {}).get("parameters")
    return dict(kept) if kept else None


def ask_three(ask: Ask) -> FirstDeployment:
    """Name and region; who may come in; CloudFront or not. An empty answer takes the one in brackets."""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    given = ask(f"1. Stack name and region [tidemark {region}]: ").split()
    if len(given) > 2:
        raise CannotDeploy("a name and a region, for example: tidemark eu-central-1")
    stack, region = ([*given, *["tidemark", region][len(given) :]])[:2]
    who = ask("2. Who may come in? tokens (signed by a secret that is made now), the https:// URL of an "
              "identity provider's keys, or everybody [tokens]: ").strip() or "tokens"  # fmt: skip
    parameters = access_parameters(who, stack, ask)
    edge = (
        ask("3. CloudFront in front (it caches reads and streams events)? yes or no [yes]: ").strip() or "yes"
    )
    if edge not in ("yes", "no"):
        raise CannotDeploy(f"{edge!r} is neither yes nor no")
    return FirstDeployment(stack, region, {**parameters, "Edge": "true" if edge == "yes" else "false"})


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


def make_secret(name: str, ssm: Any) -> bool:
    """Put a new secret under `name`, unless there is one. Returns whether it was made."""
    try:
        ssm.put_parameter(Name=name, Type="SecureString", Value=secrets.token_hex(32), Overwrite=False)
    except ssm.exceptions.ParameterAlreadyExists:
        return False
    return True


def concurrency_warning(limit: int) -> str:
    """Empty when the account's limit of concurrent executions is enough."""
    if limit >= _ENOUGH_CONCURRENCY:
        return ""
    return (
        f"This account runs {limit} functions at once. Each waiting reader takes one, so {limit} stop "
        "every writer. Ask for more, which is free:\n  aws service-quotas request-service-quota-increase "
        "--service-code lambda --quota-code L-B99A9384 --desired-value 1000"
    )


def short_waits(limit: int, given: Mapping[str, str]) -> dict[str, str]:
    """Parameters that bound how long readers wait where `limit` functions run at once. What was given stays;
    with a higher limit the next deployment takes them away."""
    if limit >= _ENOUGH_CONCURRENCY:
        return {}
    return {name: value for name, value in _SHORT_WAITS.items() if name not in given}


def check_bytecode(layer: Path = LAYER) -> None:
    """Raises CannotDeploy for a layer that was built without the runtime's Python."""
    if layer.is_dir() and not any(layer.rglob("*.pyc")):
        raise CannotDeploy(
            "The layer has no bytecode, so every cold start would compile every module: 2.5 times the CPU. "
            "Install the runtime's Python (make build says which) and build again, or deploy it as it is: "
            "make deploy ARGS=--without-bytecode"
        )


def overrides_of(kept: Mapping[str, Any]) -> dict[str, str]:
    """The template's parameters that samconfig.toml names."""
    pairs = shlex.split(str(kept.get("parameter_overrides", "")))
    return dict(each.split("=", 1) for each in pairs if "=" in each)


def make_what_is_missing(kept: Mapping[str, Any]) -> None:
    """What the template needs and cannot make: the secret."""
    import boto3

    if name := overrides_of(kept).get("AuthSecretName"):
        made = make_secret(name, boto3.client("ssm", region_name=kept.get("region")))
        print(f"{'Made' if made else 'Found'} the secret {name}. Tokens: make token SECRET_NAME={name}")


def concurrency_limit(kept: Mapping[str, Any]) -> int:
    """How many functions the account runs at once."""
    import boto3

    account = boto3.client("lambda", region_name=kept.get("region")).get_account_settings()
    limit: int = account["AccountLimit"]["ConcurrentExecutions"]
    return limit


def run_sam(*arguments: str) -> int:
    return subprocess.run([os.environ.get("SAM", "sam"), *arguments], check=False).returncode  # noqa: S603


def main(arguments: Sequence[str] | None = None, ask: Ask = input, config: Path = CONFIG) -> int:
    parser = argparse.ArgumentParser(prog="python -m tidemark.ops.deploy", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="show the change set, change nothing")
    parser.add_argument("--remove", action="store_true", help="delete the stack; table and bucket stay")
    parser.add_argument("--yes", action="store_true", help="do not ask before the change set is executed")
    parser.add_argument("--without-bytecode", action="store_true", help="deploy a layer that has none")
    given = parser.parse_args(arguments)
    kept = remembered(config)
    if given.remove:
        if kept is None:
            print(f"{config} remembers no deployment", file=sys.stderr)
            return 2
        return remove(kept, yes=given.yes)
    try:
        if kept is None:
            first = ask_three(ask).as_toml()
            if not config.exists():
                config.write_text("version = 0.1\n")
            with config.open("a") as file:
                file.write(first)
            kept = remembered(config) or {}
        if not given.dry_run:
            if not given.without_bytecode:
                check_bytecode()
            make_what_is_missing(kept)
        waits = bound_waits(kept)
    except CannotDeploy as refusal:
        print(refusal, file=sys.stderr)
        return 2
    except EOFError:
        print("Nobody answers the questions: run `make deploy` in a terminal, once.", file=sys.stderr)
        return 2
    how = ["--no-execute-changeset"] if given.dry_run else ["--no-confirm-changeset"] if given.yes else []
    where = ["--config-file", str(config.resolve()), "--no-fail-on-empty-changeset"]
    return run_sam("deploy", *where, *how, *waits)


def bound_waits(kept: Mapping[str, Any]) -> list[str]:
    """Options of sam for an account that runs few functions at once, and a warning."""
    limit = concurrency_limit(kept)
    if warning := concurrency_warning(limit):
        print(warning, file=sys.stderr)
    waits = " ".join(f"{name}={value}" for name, value in short_waits(limit, overrides_of(kept)).items())
    if not waits:
        return []
    print(f"Until then readers wait for seconds only: {waits}", file=sys.stderr)
    return ["--parameter-overrides", f"{kept.get('parameter_overrides', '')} {waits}".strip()]


def remove(kept: dict[str, Any], *, yes: bool) -> int:
    where = ["--stack-name", str(kept["stack_name"]), "--region", str(kept["region"])]
    code = run_sam("delete", *where, *(["--no-prompts"] if yes else []))
    if code == 0:
        print("The table and the bucket hold your data and stay; docs/operations.md says how to delete them.")
    return code


if __name__ == "__main__":
    sys.exit(main())
