"""`SnapStart=true`: the routes lead to an alias of the newest version. There is one version, and whatever
changes a function publishes another one."""

from __future__ import annotations

import json

import pytest

from tests.costs import prices
from tests.infra.custom_resources import answers_of
from tests.infra.test_edge import CONDITIONS, DEFAULTS, holds
from tests.infra.test_template import FUNCTION_GLOBALS, FUNCTIONS, INTEGRATIONS, TEMPLATE

RESOURCES = TEMPLATE["Resources"]
CONFIGURATION = RESOURCES["Configuration"]["Properties"]
#: Those whose cold start a client waits for. The live function's process is not the runtime's: its adapter
#: (layer 27) does not hand on what Lambda says of snapshots.
STARTED_FROM_SNAPSHOTS = ("Write", "Read")
#: What changes without another version: roles, and how many run at once.
NOT_IN_A_VERSION = ("Policies", "ReservedConcurrentExecutions", "SnapStart")


def test_it_is_off_unless_asked_for() -> None:
    """Then there is no version, no alias, and no function that computes the digest."""
    assert not holds(CONDITIONS["HasSnapStart"], DEFAULTS)
    assert holds(CONDITIONS["HasSnapStart"], DEFAULTS | {"SnapStart": "true"})
    conditional = {name for name, each in RESOURCES.items() if each.get("Condition") == "HasSnapStart"}
    assert conditional == {
        *("WriteVersion", "WriteAlias", "ReadVersion", "ReadAlias"),
        *("Configuration", "DigestFunction", "DigestRole"),
    }


@pytest.mark.parametrize("name", STARTED_FROM_SNAPSHOTS)
def test_routes_lead_to_the_alias_or_to_the_function(name: str) -> None:
    """And the API may call the one that its routes lead to."""
    function, alias = f"{name}Function", f"{name}Alias"
    [_, values] = INTEGRATIONS[name]["uri"]["Sub"]
    assert values == {"Called": {"If": ["HasSnapStart", {"Ref": alias}, {"GetAtt": f"{function}.Arn"}]}}
    permission = RESOURCES[f"ApiMayCall{name}"]["Properties"]
    assert permission["FunctionName"] == {"If": ["HasSnapStart", {"Ref": alias}, {"Ref": function}]}
    assert permission["SourceArn"]["Sub"].endswith(":${Api}/*")
    applies = {"ApplyOn": {"If": ["HasSnapStart", "PublishedVersions", "None"]}}
    assert FUNCTIONS[function]["SnapStart"] == applies
    assert RESOURCES[alias]["Properties"]["FunctionVersion"] == {"GetAtt": f"{name}Version.Version"}


def test_no_other_function_starts_from_a_snapshot() -> None:
    assert [name for name, each in FUNCTIONS.items() if "SnapStart" in each] == [
        f"{name}Function" for name in STARTED_FROM_SNAPSHOTS
    ]


def test_lambda_makes_snapshots_of_such_functions() -> None:
    """Python 3.12 and later, 512 MB in /tmp and no other file system, no provisioned concurrency."""
    assert tuple(map(int, FUNCTION_GLOBALS["Runtime"].removeprefix("python").split("."))) >= (3, 12)
    for each in (FUNCTION_GLOBALS, *(FUNCTIONS[f"{name}Function"] for name in STARTED_FROM_SNAPSHOTS)):
        assert not {"EphemeralStorage", "FileSystemConfigs", "ProvisionedConcurrencyConfig"} & each.keys()


@pytest.mark.parametrize("name", STARTED_FROM_SNAPSHOTS)
def test_an_old_version_is_deleted(name: str) -> None:
    """Each that is kept is billed. Another description is another version."""
    version = RESOURCES[f"{name}Version"]
    assert not {"DeletionPolicy", "UpdateReplacePolicy"} & version.keys()
    assert version["Properties"] == {
        "FunctionName": {"Ref": f"{name}Function"},
        "Description": {"GetAtt": "Configuration.Digest"},
    }


def test_the_digest_is_of_all_that_a_deployment_changes_about_the_functions() -> None:
    """Of nothing else either: Lambda publishes no version of a function that has not changed, and then the
    deployment fails. The origin secret is there by its name, which changes with it."""
    declared = dict(FUNCTION_GLOBALS["Environment"]["Variables"])
    condition, made, otherwise = declared["EDGE_SECRET"]["If"]
    assert made == {"GetAtt": "OriginSecret.Value"}
    declared["EDGE_SECRET"] = {"If": [condition, {"Ref": "OriginSecret"}, otherwise]}
    assert CONFIGURATION["Variables"] == declared
    assert [CONFIGURATION["Layer"]] == FUNCTION_GLOBALS["Layers"]
    constant = {"Runtime", "Architectures", "Handler"}
    assert FUNCTION_GLOBALS.keys() - constant - {"Environment", "Layers"} == {"MemorySize", "Tracing"}
    assert all(CONFIGURATION[name] == FUNCTION_GLOBALS[name] for name in ("MemorySize", "Tracing"))
    assert CONFIGURATION.keys() == {
        *("ServiceToken", "ServiceTimeout", "Layer", "MemorySize", "Tracing", "Variables"),
    }


@pytest.mark.parametrize("name", STARTED_FROM_SNAPSHOTS)
def test_a_functions_own_properties_are_the_same_in_every_deployment(name: str) -> None:
    """They refer to nothing but their log group. What the template itself says is counted by the layer's
    build."""
    own = {key: each for key, each in FUNCTIONS[f"{name}Function"].items() if key not in NOT_IN_A_VERSION}
    assert own["LoggingConfig"]["LogGroup"] == {"Ref": f"{name}Logs"}
    own["LoggingConfig"] = own["LoggingConfig"] | {"LogGroup": ""}
    assert not any(tag in json.dumps(own) for tag in ('"Ref"', '"GetAtt"', '"Sub"', '"If"'))


def test_the_digest_changes_with_the_configuration_alone() -> None:
    ask = {"StackId": "stack", "RequestId": "1", "LogicalResourceId": "Configuration"}
    requests = [
        ask | {"RequestType": "Update", "ResourceProperties": properties}
        for properties in (
            {"MemorySize": "512", "Variables": {"A": "1", "B": "2"}},
            {"Variables": {"B": "2", "A": "1"}, "MemorySize": "512"},
            {"MemorySize": "512", "Variables": {"A": "1", "B": "3"}},
        )
    ]
    received = answers_of("DigestFunction", *requests)
    first, same, other = received
    assert first["Data"]["Digest"] == same["Data"]["Digest"] != other["Data"]["Digest"]
    assert len(first["Data"]["Digest"]) <= 256, "the longest description of a version"
    for answer in received:
        assert (answer["Status"], answer["PhysicalResourceId"]) == ("SUCCESS", "configuration")
        assert (answer["StackId"], answer["RequestId"]) == ("stack", "1")


def test_the_parameter_says_its_price() -> None:
    """Of one version of 512 MB, kept for thirty days."""
    monthly = 0.5 * 30 * 24 * 3600 * prices.SNAPSHOT_GB_SECOND
    assert f"${monthly:.2f} a month for each 512 MB" in TEMPLATE["Parameters"]["SnapStart"]["Description"]
