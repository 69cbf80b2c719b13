"""One body for both tables: the embedded one and DynamoDB's answer the same to whatever is asked."""

import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.stack.engines import LocalServices
from tests.support import World, make_world, table_of
from tidemark.engine.database import Database
from tidemark.engine.sqlite_file import MEMORY
from tidemark.engine.table import EmbeddedTable
from tidemark.log import table as api
from tidemark.log.schema import Item

pytestmark = pytest.mark.each_engine

SKS = ["0", "00", "1", "1.", "é", "~", "stream/a", "stream/b"]
CALLS = 400


@pytest.fixture
def tables(services: LocalServices) -> tuple[api.Table, api.Table]:
    world: World = make_world(services)
    return EmbeddedTable(Database(MEMORY)), table_of(world.process().stores)


class Asking:
    """Random calls over few keys, so that conditions meet what is there."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.partitions = [f"{letter}{uuid.uuid4().hex[:6]}" for letter in "pq"]

    def key(self) -> Item:
        return {"pk": {"S": self.chance.choice(self.partitions)}, "sk": {"S": self.chance.choice(SKS)}}

    def item(self) -> Item:
        more = {
            "n": {"N": str(self.chance.randrange(-1, 12))},
            "s": {"S": self.chance.choice(["a", "ab", "é", ""])},
            "inc": {"S": self.chance.choice(["a", "b"])},
            "rc": {"N": str(self.chance.randrange(3))},
            "dl": {"N": "1"},
            "to": {"N": str(self.chance.randrange(5))},  # A word of DynamoDB's.
            "b": {"B": "eDs="},
        }
        return self.key() | {name: value for name, value in more.items() if self.chance.random() < 0.5}

    def condition(self, depth: int = 0) -> api.Condition:
        name = self.chance.choice(["n", "s", "inc", "rc", "dl", "to", "sk"])
        by = self.chance.choice(["=", "<>", "<", "<=", ">"])
        number, text = self.chance.randrange(-1, 12), self.chance.choice(["a", "b", "é"])
        one: api.Condition = api.Compared(name, by, text if name in {"s", "inc", "sk"} else number)  # type: ignore[arg-type]
        kinds: list[Callable[[], api.Condition]] = [lambda: api.IF_ABSENT, lambda: one, lambda: one]
        kinds += [lambda: api.Present(name), lambda: api.Missing(name)]
        if depth < 2:
            two = [self.condition(depth + 1), self.condition(depth + 1)]
            kinds += [lambda: api.AllOf(*two), lambda: api.AnyOf(*two)]
        return self.chance.choice(kinds)()

    def maybe(self) -> api.Condition | None:
        return self.condition() if self.chance.random() < 0.7 else None

    def write(self, key: Item) -> api.Write:
        if self.chance.random() < 0.5:
            return api.Write(self.item() | key, condition=self.maybe())
        sets = {"s": {"S": "set"}, "to": {"N": "7"}} if self.chance.random() < 0.7 else {}
        adds = {"rc": self.chance.randrange(-2, 3)} if not sets or self.chance.random() < 0.5 else {}
        return api.Write(api.Update(key, sets, adds), condition=self.maybe())

    def call(self) -> Callable[[api.Table], Any]:
        """The same for each table that it is given."""
        key, item, condition = self.key(), self.item(), self.maybe()
        keys = [{"pk": key["pk"], "sk": {"S": sk}} for sk in self.chance.sample(SKS, 3)]
        writes = [self.write(each) for each in keys]
        low, high = sorted(self.chance.choices(SKS, k=2), key=str.encode)
        asked: dict[str, Any] = {"at_least": low, "at_most": high, "backward": self.chance.random() < 0.5}
        asked |= self.chance.choice([{}, {"limit": 2}, {"attributes": ("sk", "n", "to")}])
        number, incarnation = self.chance.randrange(9), self.chance.choice("ab")
        calls: list[Callable[[api.Table], Any]] = [
            lambda table: table.get(key),
            lambda table: table.put(item, condition),
            lambda table: table.put(item, api.IF_ABSENT),
            lambda table: table.delete(key, condition),
            lambda table: table.delete_many(keys),
            lambda table: table.transact(writes),
            lambda table: table.transact(writes[:1]),
            lambda table: table.raise_number(key, "to", number, incarnation),
            lambda table: _page(table.query(key["pk"]["S"], **asked), asked),
            lambda table: sorted(table.get_many(keys), key=_sk),
            lambda table: sorted(table.get_many(keys, ("n", "sk")), key=_sk),
        ]
        return self.chance.choice(calls)


def answer(table: api.Table, call: Callable[[api.Table], Any]) -> Any:
    """What it returns, or what it refuses with."""
    try:
        found = call(table)
    except api.ConditionFailed as refused:
        return "failed", refused.existing
    except api.TransactionRefused as refused:
        return "refused", refused.failed, refused.existing
    return _sorted(found)


def _sorted(found: Any) -> Any:
    """No order of attributes; that of items stays."""
    if isinstance(found, dict):
        return sorted(found.items())
    if isinstance(found, list | tuple):
        return [_sorted(each) for each in found]
    return found


def _page(found: tuple[list[Item], bool], asked: dict[str, Any]) -> Any:
    """At the limit DynamoDB says that there may be more; moto looks whether there is."""
    items, more = found
    return items, more or len(items) == asked.get("limit")


def _sk(item: Item) -> str:
    sk: str = item["sk"]["S"]
    return sk


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_calls_are_answered_alike(tables: tuple[api.Table, api.Table], seed: int) -> None:
    asking, answers = Asking(seed), set()
    for _ in range(CALLS):
        call = asking.call()
        embedded, dynamodb = (answer(table, call) for table in tables)
        assert embedded == dynamodb
        answers.add(str(embedded)[:8])
    assert len(answers) > 4
    for partition in asking.partitions:
        embedded, dynamodb = (_sorted(table.query(partition, at_least=" ")) for table in tables)
        assert embedded == dynamodb


def test_a_page_of_a_query_has_about_a_megabyte(tables: tuple[api.Table, api.Table]) -> None:
    partition, filler = f"p{uuid.uuid4().hex[:6]}", {"B": "eDsx" * 75_000}
    for table in tables:
        for number in range(6):
            table.put({"pk": {"S": partition}, "sk": {"S": str(number)}, "b": filler})
    pages = [table.query(partition) for table in tables]
    assert [more for _, more in pages] == [True, True]
    assert all(3 <= len(items) <= 5 for items, _ in pages)


def test_what_dynamodb_would_not_take_is_not_taken(tables: tuple[api.Table, api.Table]) -> None:
    same = api.Write({"pk": {"S": "p"}, "sk": {"S": "0"}})
    for table in tables:
        with pytest.raises(Exception, match=r"DynamoDB|multiple operations"):
            table.transact([same, same])


def test_an_item_is_removed_once_its_time_has_passed() -> None:
    table = EmbeddedTable(Database(MEMORY))
    for sk, ttl in (("0", "99"), ("1", "100"), ("2", "101")):
        table.put({"pk": {"S": "p"}, "sk": {"S": sk}, "ttl": {"N": ttl}})
    table.put({"pk": {"S": "p"}, "sk": {"S": "3"}})
    assert table.remove_expired(100_500) == 1
    assert [item["sk"]["S"] for item in table.query("p")[0]] == ["1", "2", "3"]


def test_each_write_is_heard_of_and_no_other() -> None:
    heard: list[tuple[str, str]] = []
    table = EmbeddedTable(Database(MEMORY), lambda _db, event, key: heard.append((event, key["sk"]["S"])))
    item = {"pk": {"S": "p"}, "sk": {"S": "0"}, "n": {"N": "1"}}
    table.put(item, api.IF_ABSENT)
    table.put(item)  # As it is already: no change.
    with pytest.raises(api.ConditionFailed):
        table.put(item, api.IF_ABSENT)
    table.transact([api.Write(api.Update(item, adds={"n": 1}), condition=api.equals("n", 1))])
    with pytest.raises(api.TransactionRefused):
        table.transact([api.Write(item), api.Write(item | {"sk": {"S": "1"}}, condition=api.Present("n"))])
    table.delete(item)
    table.delete(item)
    assert heard == [("INSERT", "0"), ("MODIFY", "0"), ("REMOVE", "0")]
