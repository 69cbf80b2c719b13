"""Hadoop's S3A, where `make tests3a` has fetched it: 180 MB of jars that only these tests need."""

from pathlib import Path
from typing import Any

_DIRECTORY = Path(__file__).parents[2] / ".s3a" / "sagemaker_pyspark" / "jars"
JARS = sorted(
    str(path) for name in ("hadoop-aws-*.jar", "aws-java-sdk-bundle-*.jar") for path in _DIRECTORY.glob(name)
)
#: The jars are of an older Hadoop than Spark's. That one writes times as "60s", which this one
#: cannot read; and has credential providers of a newer SDK by default.
_SETTINGS = {
    "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "fs.s3a.access.key": "tidemark",
    "fs.s3a.secret.key": "tidemark",
    "fs.s3a.path.style.access": "true",
    "fs.s3a.connection.ssl.enabled": "false",
    "fs.s3a.threads.keepalivetime": "60",
    "fs.s3a.connection.establish.timeout": "5000",
    "fs.s3a.connection.timeout": "200000",
    "fs.s3a.multipart.purge.age": "86400",
}


def lead_to(spark: Any, endpoint: str) -> None:
    """For every bucket that was not opened before: a file system is made once."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in (_SETTINGS | {"fs.s3a.endpoint": endpoint}).items():
        hadoop.set(name, value)
