"""What is not on the data path is imported with its first request."""

import json
import os
import subprocess
import sys

PROBE = """
import json, sys
from tidemark.http.lambda_adapter import create_function_app
from tidemark.settings import Settings
import os
create_function_app(Settings.from_environment(os.environ))
print(json.dumps(sorted(sys.modules)))
"""


def test_the_data_path_imports_neither_fastapi_nor_pydantic_nor_botocore_nor_msgspec() -> None:
    """They are most of a cold start; msgspec comes with the first body of JSON."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    environment = dict.fromkeys(names, "test") | {"AWS_REGION": "cn-north-1", "ALLOW_ANONYMOUS": "true"}
    environment["PATH"] = os.environ["PATH"]
    ran = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(ran.stdout))
    assert "tidemark.http.app" in loaded
    assert loaded.isdisjoint({"fastapi", "pydantic", "botocore", "boto3", "msgspec", "tidemark.http.buckets"})
