"""What SAM makes of the template, as JSON: run by the Python that SAM has (.venv-sam), with parameters as
`Name=value`. Code lies somewhere in S3: this is about everything else."""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")

from samtranslator.translator.managed_policy_translator import ManagedPolicyLoader
from samtranslator.translator.transform import transform
from samtranslator.yaml_helper import yaml_parse

template = yaml_parse((Path(__file__).parents[2] / "template.yaml").read_text())
parameters = {name: str(each.get("Default", "")) for name, each in template["Parameters"].items()}
parameters |= dict(given.split("=", 1) for given in sys.argv[1:])
for resource in template["Resources"].values():
    for name in ("CodeUri", "ContentUri"):
        if name in resource.get("Properties", {}):
            resource["Properties"][name] = "s3://bucket/key"

#: None is named in the template, so IAM need not be asked which there are.
policies = ManagedPolicyLoader(None)
policies._policy_map = {}
print(json.dumps(transform(template, parameters, policies)))
