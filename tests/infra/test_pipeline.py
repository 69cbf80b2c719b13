"""The pipeline's template: a stack of its own, free while idle, and calling jobs that exist."""

import argparse
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from pipeline import package
from tests.infra.jobs import parser_of
from tests.infra.test_template import ROOT, TEMPLATE, CloudFormationLoader

NESTED = yaml.load((ROOT / "pipeline" / "template.yaml").read_text(), CloudFormationLoader)
RESOURCES = NESTED["Resources"]
MACHINE = RESOURCES["Run"]["Properties"]
STATES = MACHINE["Definition"]["States"]
TASKS = {name: state for name, state in STATES.items() if state["Type"] == "Task"}


def statements_of(role: str) -> list[dict[str, Any]]:
    policies = RESOURCES[role]["Properties"]["Policies"]
    return [statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]]


JOB_STATEMENTS = {statement["Sid"]: statement for statement in statements_of("JobRole")}


def texts_in(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            yield from itertools.chain.from_iterable(map(texts_in, value.values()))
        case list():
            yield from itertools.chain.from_iterable(map(texts_in, value))


def test_it_is_given_the_main_stacks_own_table_and_bucket() -> None:
    """What has no default is an output there, by the same name: so `make deploy` hands it on."""
    needed = {name for name, each in NESTED["Parameters"].items() if "Default" not in each}
    assert {name: TEMPLATE["Outputs"][name]["Value"] for name in needed} == {
        "TableName": {"Ref": "Table"},
        "TableArn": {"GetAtt": "Table.Arn"},
        "BucketName": {"Ref": "Bucket"},
    }
    for name in NESTED["Parameters"].keys() & TEMPLATE["Parameters"].keys():
        assert TEMPLATE["Parameters"][name]["Default"] == NESTED["Parameters"][name]["Default"], name


# --- the state machine --------------------------------------------------------------------------------------


def test_every_job_is_waited_for_tried_again_and_caught() -> None:
    for task in TASKS.values():
        assert task["Resource"]["Sub"].endswith(":states:::emr-serverless:startJobRun.sync")
        assert 1 <= task["Retry"][0]["MaxAttempts"] <= 3
        assert [each["ErrorEquals"] for each in (*task["Retry"], *task["Catch"])] == [["States.ALL"]] * 2
        assert task["Catch"][0]["ResultPath"] == "$.failure"


def test_what_is_put_into_it_is_what_it_asks_for() -> None:
    """A name misspelt on either side would be in a job's arguments as it is."""
    asked = set(re.findall(r"\$\{(\w+)\}", " ".join(texts_in(MACHINE["Definition"])))) - {"AWS"}
    assert asked == MACHINE["DefinitionSubstitutions"].keys()


def run(*, failing: set[str]) -> tuple[list[str], str]:
    """The jobs that a run starts, and how it ends: the machine, played."""
    name, jobs = MACHINE["Definition"]["StartAt"], []
    while (state := STATES[name])["Type"] == "Task":
        jobs.append(state["Parameters"]["Name"])
        name = state["Catch"][0]["Next"] if jobs[-1] in failing else state["Next"]
    return jobs, state["Type"]


def test_a_run_of_which_a_job_failed_has_failed() -> None:
    """Nothing follows an archive that failed."""
    assert run(failing=set()) == (["archive", "stats"], "Succeed")
    assert run(failing={"archive"}) == (["archive"], "Fail")
    assert run(failing={"stats"}) == (["archive", "stats"], "Fail")


@pytest.mark.parametrize("name", TASKS)
def test_every_job_exists_and_understands_its_arguments(name: str) -> None:
    """By its own parser, with what the template puts in."""
    spark = TASKS[name]["Parameters"]["JobDriver"]["SparkSubmit"]
    job = TASKS[name]["Parameters"]["Name"]
    assert spark["EntryPoint"] == f"s3://${{Lake}}/code/{job}.py"
    assert job in package.JOBS
    given = arguments_of(job, spark["EntryPointArguments"])
    assert given.iceberg == "lake.messages"
    assert dict(given.catalog_property) == {
        "type": "glue",
        "client.region": "eu-central-1",
        "warehouse": "s3://a-lake/tables",
    }
    assert (given.table, given.bucket, given.subscribePattern) == ("a-table", "agents", ".*")
    assert ("region", "eu-central-1") in given.option


VALUES = {
    "Lake": "a-lake",
    "LakeTable": "lake.messages",
    "Table": "a-table",
    "Blobs": "a-bucket",
    "Streams": "agents",
    "Region": "eu-central-1",
    "Pattern": ".*",
    "FailOnDataLoss": "false",
}


def arguments_of(job: str, texts: list[str]) -> argparse.Namespace:
    filled = [re.sub(r"\$\{(\w+)\}", lambda found: VALUES[found[1]], text) for text in texts]
    return parser_of(job).parse_args(filled)


def test_no_value_can_break_out_of_the_text_it_is_put_into() -> None:
    """Substitutions are text within JSON: whatever a person may choose has neither quotes nor backslashes."""
    free = ("Streams", "Pattern", "LakeTable")
    for name in free:
        allowed = re.compile(NESTED["Parameters"][name]["AllowedPattern"])
        assert allowed.match('a"b') is None, name
        assert allowed.match("a\\b") is None, name
        assert allowed.match(VALUES[name]) is not None, name


def submitted() -> dict[str, str]:
    """The settings that every job is submitted with."""
    text = MACHINE["DefinitionSubstitutions"]["Submit"]["Sub"]
    return dict(each.split("=", 1) for each in re.findall(r"--conf (\S+)", text)) | {
        "archives": re.findall(r"--archives (\S+)", text)[0]
    }


def test_driver_and_executors_find_the_package() -> None:
    settings = submitted()
    directory = settings["archives"].partition("#")[2]
    assert settings["archives"].startswith("s3://${Lake}/code/environment.tar.gz#")
    paths = {settings["spark.emr-serverless.driverEnv.PYTHONPATH"], settings["spark.executorEnv.PYTHONPATH"]}
    assert paths == {f"./{directory}"}
    pythons = {value for name, value in settings.items() if "PYSPARK" in name}
    assert pythons == {"${PythonCommand}"}
    by_hand = NESTED["Outputs"]["SubmitJob"]["Value"]["Sub"][1]["Submit"]["Sub"]
    assert MACHINE["DefinitionSubstitutions"]["Submit"]["Sub"].startswith(by_hand), "a job by hand has others"


# --- who may do what ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "service"), [("JobRole", "emr-serverless"), ("RunRole", "states"), ("ScheduleRole", "scheduler")]
)
def test_a_role_is_its_services_for_this_account_and_may_not_do_everything(role: str, service: str) -> None:
    """`tests/spark/test_role.py` holds the job's against a recorded run."""
    [statement] = RESOURCES[role]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Service": f"{service}.amazonaws.com"}
    assert statement["Condition"]["StringEquals"] == {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}
    for statement in statements_of(role):
        assert "*" not in "".join(texts_in(statement["Action"]))
        assert statement["Resource"] != "*"
        if statement["Action"] == "iam:PassRole":
            assert statement["Condition"]["StringEquals"] == {
                "iam:PassedToService": "emr-serverless.amazonaws.com"
            }


def test_jobs_cannot_change_what_jobs_run() -> None:
    """Their code lies in the same bucket, under a prefix that none of theirs covers."""
    writing = [each for each in JOB_STATEMENTS.values() if "s3:PutObject" in each["Action"]]
    places = [text for each in writing for text in texts_in(each["Resource"])]
    assert [text for text in places if text.startswith("${Lake.Arn}/c")] == []
    assert "${Lake.Arn}/*" not in places
