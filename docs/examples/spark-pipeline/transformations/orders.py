"""A streaming table of all orders in the stream `orders`, and their sum for each customer."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession, functions

from tidemark.spark import register

spark = SparkSession.active()
register(spark)
STREAM = {"url": os.environ["TIDEMARK_URL"], "subscribe": "orders", "columns": "value"}


@dp.table
def orders() -> DataFrame:
    """Each run adds what has come since the last one."""
    rows = spark.readStream.format("tidemark").options(**STREAM).load()
    order = functions.from_json(rows["value"].cast("string"), "customer STRING, amount DOUBLE")
    return rows.select(order.alias("order")).select("order.*")


@dp.materialized_view
def totals() -> DataFrame:
    return spark.read.table("orders").groupBy("customer").agg(functions.sum("amount").alias("amount"))
