"""The pipeline's template: a stack of its own, free while idle, and calling jobs that exist."""

from __future__ import annotations

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
APPLICATION = RESOURCES["Application"]["Properties"]


def taken(value: Any, *, has_table: bool) -> Any:
    """A value of the template with its conditions decided."""
    match value:
        case {"If": ["HasLakeTable", there, elsewhere]}:
            return taken(there if has_table else elsewhere, has_table=has_table)
        case dict():
            return {name: taken(each, has_table=has_table) for name, each in value.items()}
        case list():
            decided = [taken(each, has_table=has_table) for each in value]
            return [each for each in decided if each != {"Ref": "AWS::NoValue"}]
    return value


def statements_of(role: str, *, has_table: bool = True) -> list[dict[str, Any]]:
    return [
        statement
        for policy in RESOURCES[role]["Properties"]["Policies"]
        for statement in taken(policy["PolicyDocument"]["Statement"], has_table=has_table)
    ]


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


def test_nothing_of_it_runs_while_nobody_asks() -> None:
    """No capacity is kept ready, what was started stops by itself, and two archives share no checkpoint."""
    assert "InitialCapacity" not in APPLICATION
    assert APPLICATION["AutoStopConfiguration"]["Enabled"] is True
    assert APPLICATION["AutoStopConfiguration"]["IdleTimeoutMinutes"] <= 5
    assert APPLICATION["SchedulerConfiguration"]["MaxConcurrentRuns"] == 1


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


def run(table: str, *, failing: set[str]) -> tuple[list[str], str]:
    """The jobs that a run starts, and how it ends: the machine, played."""
    name, jobs, data = MACHINE["Definition"]["StartAt"], [], {"plan.table": table}
    while True:
        state = STATES[name]
        match state["Type"]:
            case "Task":
                jobs.append(state["Parameters"]["Name"])
                failed = jobs[-1] in failing
                if failed:
                    data["failure"] = jobs[-1]
                name = state["Catch"][0]["Next"] if failed else state["Next"]
            case "Choice":
                name = next((way["Next"] for way in state["Choices"] if holds(way, data)), state["Default"])
            case "Pass":
                name = state["Next"]
            case _:
                return jobs, state["Type"]


def holds(choice: dict[str, Any], data: dict[str, str]) -> bool:
    variable = choice["Variable"].removeprefix("$.")
    if "IsPresent" in choice:
        return (variable in data) == choice["IsPresent"]
    return bool(data[variable] == choice["StringEquals"])


ALL_JOBS = ("archive", "compact", "stats")
SUBSETS = [subset for size in range(4) for subset in itertools.combinations(ALL_JOBS, size)]


@pytest.mark.parametrize("table", ["", "lake.messages"])
def test_a_run_of_which_a_job_failed_has_failed(table: str) -> None:
    """Nothing follows an archive that failed; the numbers follow a compaction that failed."""
    wanted = ["archive", *(["compact"] if table else []), "stats"]
    for failing in SUBSETS:
        jobs, end = run(table, failing=set(failing))
        assert jobs == (["archive"] if "archive" in failing else wanted), failing
        assert end == ("Fail" if set(jobs) & set(failing) else "Succeed"), failing


@pytest.mark.parametrize("has_table", [False, True], ids=["files", "a table"])
@pytest.mark.parametrize("name", TASKS)
def test_every_job_exists_and_understands_its_arguments(name: str, has_table: bool) -> None:
    """By its own parser, with what the template puts in."""
    spark = TASKS[name]["Parameters"]["JobDriver"]["SparkSubmit"]
    job = TASKS[name]["Parameters"]["Name"]
    assert spark["EntryPoint"] == f"s3://${{Lake}}/code/{job}.py"
    assert job in package.JOBS
    kind = "lake.messages" if has_table else "files"
    progress = f"s3://a-lake/checkpoints/{kind}/agents"
    given = arguments_of(job, taken(spark["EntryPointArguments"], has_table=has_table), f"{kind}/agents")
    if has_table:
        assert given.iceberg == "lake.messages"
        assert set(given.catalog_property) == {
            "type=glue",
            "client.region=eu-central-1",
            "warehouse=s3://a-lake/tables",
        }
    if job == "compact":
        return
    assert (given.table, given.bucket, given.pattern) == ("a-table", "agents", ".*")
    assert "region=eu-central-1" in given.option
    if job == "archive":
        assert (given.out, given.checkpoint) == (
            None if has_table else "s3://a-lake/archive/agents",
            progress,
        )
    else:
        # What the archive has taken is read where the archive keeps it.
        assert given.consumer == [f"archive={progress}"]
    if job == "stats":
        assert given.archive == (None if has_table else "s3://a-lake/archive/agents")


def test_each_archive_has_its_own_progress() -> None:
    """Another table is filled from the beginning, and so is one in place of files."""
    progress = MACHINE["DefinitionSubstitutions"]["Progress"]
    assert taken(progress, has_table=True) == {"Sub": "${LakeTable}/${Streams}"}
    assert taken(progress, has_table=False) == {"Sub": "files/${Streams}"}


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


def arguments_of(job: str, texts: list[str], progress: str) -> argparse.Namespace:
    values = VALUES | {"Progress": progress}
    filled = [re.sub(r"\$\{(\w+)\}", lambda found: values[found[1]], text) for text in texts]
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
    ("role", "service"),
    [("JobRole", "emr-serverless"), ("RunRole", "states"), ("ScheduleRole", "scheduler")],
)
def test_a_role_is_its_services_for_this_account_alone_and_may_not_do_everything(
    role: str, service: str
) -> None:
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


def test_the_jobs_touch_no_catalog_where_the_archive_is_files() -> None:
    sids = [{each["Sid"] for each in statements_of("JobRole", has_table=has)} for has in (True, False)]
    assert sids[0] - sids[1] == {"KeepTable", "Catalog"}


def test_jobs_cannot_change_what_jobs_run() -> None:
    """Their code lies in the same bucket, under a prefix that none of theirs covers."""
    writing = [each for each in JOB_STATEMENTS.values() if "s3:PutObject" in each["Action"]]
    places = [text for each in writing for text in texts_in(each["Resource"])]
    assert [text for text in places if text.startswith("${Lake.Arn}/c") and "checkpoints" not in text] == []
    assert "${Lake.Arn}/*" not in places
