"""A small system of functions in a template of its own."""

from pathlib import Path

import pytest

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Globals:
  Function:
    Handler: app.handler
    Timeout: 60
Resources:
  Probe:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: probe/
  Api:
    Type: AWS::Serverless::HttpApi
    Properties:
      DefinitionBody:
        paths:
          $default:
            x-amazon-apigateway-any-method:
              x-amazon-apigateway-integration: {$ref: "#/components/x-amazon-apigateway-integrations/Probe"}
        components:
          x-amazon-apigateway-integrations:
            Probe: {uri: !Sub ["functions/${Called}", {Called: !GetAtt Probe.Arn}]}
  SocketIntegration:
    Type: AWS::ApiGatewayV2::Integration
    Properties:
      IntegrationType: AWS_PROXY
      IntegrationUri: !Sub "arn:${AWS::Partition}:lambda:path/${Probe.Arn}/invocations"
  Mock:
    Type: AWS::ApiGatewayV2::Integration
    Properties: {IntegrationType: MOCK}
  Sweeper:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: sweeper/
      Events:
        Round: {Type: Schedule, Properties: {Schedule: rate(5 minutes)}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a template and two functions, whose code the test writes with `write_function`."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "template.yaml").write_text(TEMPLATE)
    write_function(root, "probe", "def handler(event, context):\n    return {'statusCode': 200}\n")
    write_function(root, "sweeper", "def handler(event, context):\n    return None\n")
    return root


def write_function(root: Path, name: str, code: str) -> None:
    (root / name).mkdir(exist_ok=True)
    (root / name / "app.py").write_text(code)
