"""The benchmark of many writers on one stream measures what it says: same runs, right bills, real limits."""

import orjson
import pytest

from benchmarks.contention import STEADY, Contest, Load
from benchmarks.metered_table import WRITE_UNITS, MeteredTable, constant
from tests.simulation.tasks import VirtualTime
from tidemark.log import append, combining


def put(pk: str, size: int = 1) -> bytes:
    item = {"pk": {"S": pk}, "sk": {"S": "."}, "b": {"S": "x" * size}}
    return orjson.dumps({"TableName": "t", "Item": item})


@pytest.mark.parametrize(
    ("writers", "load", "write_units", "appends_per_second"),
    [
        # A mail each, and a share of a batch; racing, eight writers would pay three writes and more.
        pytest.param(8, Load(), 1.5, 300, id="small appends"),
        # More than an idle stream carries: none is pushed out or looked up in the middle of a race.
        pytest.param(16, Load(50, producers=True), 1.5, 300, id="producers"),
        # Its bytes go to S3, and pointers race; racing, eight writers would pay its size several times.
        pytest.param(8, Load(16_384), 2.5, 95, id="large appends"),
    ],
)
def test_writers_that_combine_share_their_writes_and_nobody_is_refused(
    writers: int, load: Load, write_units: float, appends_per_second: float
) -> None:
    row = Contest(writers, STEADY, load).run(seconds=0.5)
    assert row.write_units < write_units
    assert row.appends_per_second > appends_per_second
    assert row.refused == 0


def test_a_contest_has_the_same_result_every_time() -> None:
    """Virtual time and seeded latencies leave no noise."""
    row, again = (Contest(8, STEADY).run(seconds=0.1) for _ in range(2))
    assert row == again


def test_of_more_writers_than_a_stream_takes_some_are_refused_early_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With batches of a tenth of the size, 48 writers land about as much as 12. No outcome is unknown."""
    monkeypatch.setattr(combining, "_MOST_WRITERS", 12)
    for module in (combining, append):
        monkeypatch.setattr(module, "MAX_APPENDS", 16)
    few, many = (Contest(writers, STEADY).run(seconds=1) for writers in (12, 48))
    assert few.refused == 0
    assert many.refused > 0
    assert many.unknown == 0
    assert many.appends_per_second > few.appends_per_second * 2 / 3


def test_a_partition_that_has_spent_its_units_throttles_and_no_other_does() -> None:
    """1,000 write units a second for each partition key, and what a second of rest has saved up."""
    time = VirtualTime()
    table = MeteredTable(time, constant(0.0))
    statuses: list[int] = []

    def hammer() -> None:
        statuses.extend(table.send("PutItem", put("hot"))[0] for _ in range(int(WRITE_UNITS) + 1))
        statuses.append(table.send("PutItem", put("cold"))[0])
        time.sleep(0.1)
        statuses.append(table.send("PutItem", put("hot"))[0])

    time.spawn(hammer)
    time.run(until=1)
    assert statuses == [200] * int(WRITE_UNITS) + [400, 200, 200]
    assert table.counts["throttled"] == 1


def test_write_units_are_kilobytes_and_a_transaction_costs_twice() -> None:
    """As DynamoDB bills."""
    time = VirtualTime()
    table = MeteredTable(time, constant(0.005))
    writes = [{"Put": orjson.loads(put(pk, 1500))} for pk in ("a", "b")]
    time.spawn(lambda: table.send("PutItem", put("c", 1500)))
    time.spawn(lambda: table.send("TransactWriteItems", orjson.dumps({"TransactItems": writes})))
    time.run(until=1)
    assert table.counts["write_units"] == 2 + 2 * (2 + 2)
    assert time.now == 0.005
