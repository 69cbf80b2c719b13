"""Runs in the SAM CLI's environment: a template and its parameters on standard input, the expanded one on
standard output."""

import json
import os
import sys

os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")

from samtranslator.translator.managed_policy_translator import ManagedPolicyLoader
from samtranslator.translator.transform import transform

task = json.load(sys.stdin)
#: The template names no managed policy by its bare name, so IAM need not be asked which there are.
policies = ManagedPolicyLoader(None)
policies._policy_map = {}
json.dump(transform(task["template"], task["parameters"], policies), sys.stdout)
