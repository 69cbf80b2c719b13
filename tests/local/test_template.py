"""The template is read as SAM would: globals, parameters' defaults, CloudFormation's short tags."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.local.engines import ROOT
from tidemark.local.template import InvalidTemplate, load_template


def test_the_deployed_template_is_complete() -> None:
    """Every function it declares has its code in this repository, and two of them have a schedule."""
    template = load_template(ROOT / "template.yaml")
    assert {"WriteFunction", "ReadFunction", "JanitorFunction"} <= template.functions.keys()
    functions = dict(template.functions)
    live = functions.pop("LiveFunction")
    assert live.module.with_suffix(".sh").is_file(), "the web adapter starts a script, not a handler"
    for function in functions.values():
        assert function.module.is_file(), function.module
        assert function.attribute == "handler"
    assert template.scheduled == ("JanitorFunction", "PackerFunction")


DECLARED = """
Parameters:
  Wait: {Type: Number, Default: 25}
  Size: {Type: Number, Default: 512}
Globals:
  Function:
    Handler: app.handler
    MemorySize: !Ref Size
    Environment:
      Variables: {TABLE_NAME: !Ref Table, SHARED: shared, FLAG: true}
Resources:
  Table: {Type: AWS::DynamoDB::Table}
  First:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: first/
      Timeout: !Ref Wait
      Environment:
        Variables: {OWN: 7, SHARED: own, ARN: !GetAtt Table.Arn, NAME: !Sub "${Table}-x"}
      Layers: [!Ref Layer, !If [Yes, !Ref A, !Ref AWS::NoValue]]
  Second:
    Type: AWS::Serverless::Function
    Properties: {CodeUri: second, Handler: src.main.run}
"""


def test_globals_default_parameters_and_short_tags_are_resolved(tmp_path: Path) -> None:
    path = tmp_path / "template.yaml"
    path.write_text(DECLARED)
    functions = load_template(path).functions
    first, second = functions["First"], functions["Second"]
    assert first.module == tmp_path / "first/app.py"
    assert (first.timeout_seconds, first.memory_mb) == (25, 512)
    # What only AWS knows is left to the process's environment.
    assert first.variables == {"SHARED": "own", "FLAG": "true", "OWN": "7"}
    assert (second.module, second.attribute) == (tmp_path / "second/src/main.py", "run")
    assert second.timeout_seconds == 3, "Lambda's default"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", "not YAML"),
        ("text", "not a template"),
        ("Resources: {F: {Type: AWS::Serverless::Function, Properties: {CodeUri: f}}}", "Handler"),
        (
            """
Globals: {Function: {Handler: app.handler, CodeUri: f}}
Resources:
  A: {Type: AWS::Serverless::Function}
  Api:
    Type: AWS::Serverless::HttpApi
    Properties:
      DefinitionBody:
        paths: {/a: {get: {x-amazon-apigateway-integration: {$ref: "#/components/b"}}}}
        components: {x-amazon-apigateway-integrations: {b: {uri: !GetAtt B.Arn}}}
""",
            "get /a leads to no function",
        ),
    ],
)
def test_a_template_that_cannot_run_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "template.yaml"
    path.write_text(text)
    with pytest.raises(InvalidTemplate, match=complaint):
        load_template(path)
