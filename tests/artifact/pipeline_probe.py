"""Imports the pipeline's package by itself: the environment that EMR unpacks, Spark, and Python.

Started by `test_pipeline_package.py` without site-packages and without the project. What is built for EMR's
processor cannot run here, so the same versions built for this one stand in front; nothing else does.
"""

import json
import sys

task = json.load(sys.stdin)
sys.path[:0] = [task["natives"], task["environment"]]

import contextlib  # noqa: E402 - the path comes first
import importlib  # noqa: E402
import io  # noqa: E402
import pkgutil  # noqa: E402
import runpy  # noqa: E402

import boto3  # noqa: E402

import tidemark.spark  # noqa: E402

for module in pkgutil.walk_packages(tidemark.spark.__path__, "tidemark.spark."):
    importlib.import_module(module.name)
boto3.client("s3", region_name="us-east-1")

helped = []
for job in task["names"]:
    sys.argv = [job, "--help"]
    said = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(said):
        runpy.run_path(f"{task['jobs']}/{job}.py", run_name="__main__")
    if "spark-submit" in said.getvalue():
        helped.append(job)

origins = {name: module.__file__ for name, module in sys.modules.items() if getattr(module, "__file__", None)}
print("REPORT" + json.dumps({"jobs": helped, "origins": origins}))
