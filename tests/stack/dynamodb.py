"""DynamoDB's own protocol on the embedded engine: the operations and expressions that Tidemark uses.

The deployed handlers use it with `VIA=lambda`, and tests as their quick DynamoDB. Every other operation,
parameter or expression is refused by name.
"""

import ast
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import orjson

from tidemark.engine.rows import checked_rows, place_of
from tidemark.engine.table import EmbeddedTable, key_of
from tidemark.log import table as tables
from tidemark.log.schema import PK, SK, Item, Key

Arguments = dict[str, Any]

#: How long DynamoDB remembers the token of a transaction that it has carried out.
TOKEN_MS: Final = 10 * 60 * 1000
MAX_ITEM_BYTES: Final = 400 * 1024
_FAILED: Final = "The conditional request failed"

#: Every operation may have these parameters.
_ANYWHERE: Final = {
    "TableName",
    "ConsistentRead",
    "ExpressionAttributeNames",
    "ExpressionAttributeValues",
    "ReturnValuesOnConditionCheckFailure",
}


class Refused(Exception):
    """DynamoDB would answer with this error."""

    def __init__(self, code: str, message: str, **more: Any) -> None:
        super().__init__(f"{code}: {message}")
        name = f"com.amazonaws.dynamodb.v20120810#{code}"
        self.answer = 400, orjson.dumps({"__type": name, "message": message} | more)


def _invalid(message: str) -> Refused:
    return Refused("ValidationException", message)


class DynamoDBProtocol:
    """Serves one table, and ignores its name in requests. `now_ms` is the clock by which the tokens of
    transactions age."""

    def __init__(self, table: EmbeddedTable, now_ms: Callable[[], int]) -> None:
        self.table = table
        self._now_ms = now_ms
        self._tokens: dict[str, tuple[int, bytes]] = {}
        #: The tokens of transactions that are being committed. They were not carried out if the commit fails.
        self._uncommitted: set[str] = set()
        table.database.taken_back.append(self._forget_uncommitted)
        #: Each operation, and the parameters of it that are understood, beside `_ANYWHERE`.
        self._operations: dict[str, tuple[Callable[[Arguments], dict[str, Any]], set[str]]] = {
            "GetItem": (self._get, {"Key", "ProjectionExpression"}),
            "PutItem": (self._put, {"Item", "ConditionExpression"}),
            "UpdateItem": (self._update, {"Key", "UpdateExpression", "ConditionExpression"}),
            "DeleteItem": (self._delete, {"Key", "ConditionExpression"}),
            "BatchGetItem": (self._batch_get, {"RequestItems"}),
            "BatchWriteItem": (self._batch_write, {"RequestItems"}),
            "TransactWriteItems": (self._transact, {"TransactItems", "ClientRequestToken"}),
            "Query": (
                self._query,
                {"KeyConditionExpression", "ProjectionExpression", "Limit", "ScanIndexForward"},
            ),
            "Scan": (self._scan, {"Limit", "ExclusiveStartKey", "Segment", "TotalSegments"}),
        }

    def send(self, operation: str, body: bytes) -> tuple[int, bytes]:
        """Status and JSON, as DynamoDB answers them. Raises what the engine raises where its disk fails."""
        arguments: Arguments = orjson.loads(body)
        try:
            if operation not in self._operations:
                raise _invalid(f"the embedded engine does not know the operation {operation}")
            carry_out, understood = self._operations[operation]
            if unknown := arguments.keys() - understood - _ANYWHERE:
                names = ", ".join(sorted(unknown))
                raise _invalid(f"the embedded engine does not know of {operation}: {names}")
            return 200, orjson.dumps(carry_out(arguments))
        except Refused as refusal:
            return refusal.answer

    def _get(self, arguments: Arguments) -> dict[str, Any]:
        item = self.table.get(_key(arguments["Key"]))
        return {} if item is None else {"Item": _project(arguments, item)}

    def _put(self, arguments: Arguments) -> dict[str, Any]:
        return self._single(arguments, lambda condition: self.table.put(_item(arguments["Item"]), condition))

    def _delete(self, arguments: Arguments) -> dict[str, Any]:
        return self._single(arguments, lambda condition: self.table.delete(_key(arguments["Key"]), condition))

    def _update(self, arguments: Arguments) -> dict[str, Any]:
        def update(condition: tables.Condition | None) -> None:
            try:
                self.table.transact([tables.Write(parse_update(arguments), condition=condition)])
            except tables.TransactionRefused as refused:
                raise tables.ConditionFailed(refused.existing[0]) from None

        return self._single(arguments, update)

    def _single(
        self, arguments: Arguments, write: Callable[[tables.Condition | None], None]
    ) -> dict[str, Any]:
        try:
            write(_condition_of(arguments))
        except tables.ConditionFailed as refused:
            more = _existing(arguments, refused.existing)
            raise Refused("ConditionalCheckFailedException", _FAILED, **more) from None
        return {}

    def _batch_get(self, arguments: Arguments) -> dict[str, Any]:
        [(table, asked)] = arguments["RequestItems"].items()
        keys = [_key(key) for key in asked["Keys"]]
        if not 0 < len(keys) <= tables.MAX_GETS:
            raise _invalid("Too many items requested for the BatchGetItem call")
        found = [_project(asked, item) for item in self.table.get_many(keys)]
        return {"Responses": {table: found}, "UnprocessedKeys": {}}

    def _batch_write(self, arguments: Arguments) -> dict[str, Any]:
        [requests] = arguments["RequestItems"].values()
        if not 0 < len(requests) <= tables.MAX_DELETES:
            raise _invalid("Too many items requested for the BatchWriteItem call")
        kinds = [next(iter(request.items())) for request in requests]
        self.table.transact([tables.Write(_item(put["Item"])) for kind, put in kinds if kind == "PutRequest"])
        self.table.delete_many([_key(asked["Key"]) for kind, asked in kinds if kind == "DeleteRequest"])
        return {"UnprocessedItems": {}}

    def _transact(self, arguments: Arguments) -> dict[str, Any]:
        token = arguments.pop("ClientRequestToken", None)
        asked = [next(iter(each.items())) for each in arguments["TransactItems"]]
        writes = [_write(kind, write) for kind, write in asked]
        if len({place_of(key_of(write)) for write in writes}) < len(writes):
            raise _invalid("Transaction request cannot include multiple operations on one item")
        if not 0 < len(writes) <= tables.MAX_WRITES:
            raise _invalid(f"Member must have length less than or equal to {tables.MAX_WRITES}")
        if token is not None and self._is_repeated(token, orjson.dumps(arguments)):
            return {}
        try:
            self.table.transact(writes)
        except tables.TransactionRefused as refused:
            raise _cancelled(refused, [write for _, write in asked]) from None
        if token is not None:
            self._tokens[token] = (self._now_ms(), orjson.dumps(arguments))
            self._uncommitted.add(token)
            self.table.database.then(lambda: self._uncommitted.discard(token))
        return {}

    def _forget_old_ones(self) -> None:
        while self._tokens:
            token, (carried_out_ms, _) = next(iter(self._tokens.items()))
            if self._now_ms() - carried_out_ms < TOKEN_MS:
                return
            del self._tokens[token]

    def _forget_uncommitted(self) -> None:
        for token in self._uncommitted:
            del self._tokens[token]
        self._uncommitted.clear()

    def _is_repeated(self, token: str, body: bytes) -> bool:
        """Whether a transaction with this token was carried out in the last ten minutes."""
        self._forget_old_ones()
        if token not in self._tokens:
            return False
        if self._tokens[token][1] != body:
            message = "The token was used with other parameters before"
            raise Refused("IdempotentParameterMismatchException", message)
        return True

    def _query(self, arguments: Arguments) -> dict[str, Any]:
        pk, low, high = parse_key_condition(arguments)
        backward = not arguments.get("ScanIndexForward", True)
        items, more = self.table.query(
            pk, at_least=low, at_most=high, limit=arguments.get("Limit"), backward=backward
        )
        return _page([_project(arguments, item) for item in items], items, more=more)

    def _scan(self, arguments: Arguments) -> dict[str, Any]:
        """The first of several segments has all of the table."""
        if arguments.get("Segment", 0) != 0:
            return _page([], [], more=False)
        after, limit = arguments.get("ExclusiveStartKey"), arguments.get("Limit", 1000)
        left = [item for item in all_items(self.table) if not after or place_of(item) > place_of(after)]
        return _page(left[:limit], left[:limit], more=len(left) > limit)


def all_items(table: EmbeddedTable) -> list[Item]:
    """The items in the order of their keys."""
    return table.database.operate(lambda db: [item for item, _ in checked_rows(db)], writes=False)


def _page(shown: Sequence[Item], items: Sequence[Item], *, more: bool) -> dict[str, Any]:
    page: dict[str, Any] = {"Count": len(items), "ScannedCount": len(items), "Items": shown}
    if more and items:
        page["LastEvaluatedKey"] = {PK: items[-1][PK], SK: items[-1][SK]}
    return page


# --- items -----------------------------------------------------------------------------


def _key(key: Key) -> Key:
    if key.keys() != {PK, SK} or not all(each.get("S") for each in key.values()):
        raise _invalid(f"The provided key element does not match the schema: {PK} and {SK} are texts")
    return key


def _item(item: Item) -> Item:
    _key({name: item.get(name, {}) for name in (PK, SK)})
    if len(orjson.dumps(item)) > MAX_ITEM_BYTES and item_size(item) > MAX_ITEM_BYTES:
        raise _invalid("Item size has exceeded the maximum allowed size")
    return item


def item_size(item: Item) -> int:
    """In bytes, as DynamoDB counts: names, and values without their types."""
    return sum(len(name.encode()) + _value_size(value) for name, value in item.items())


def _value_size(value: Item) -> int:
    [(kind, content)] = value.items()
    match kind:
        case "S":
            return len(content.encode())
        case "N":
            return len(content) // 2 + 1
        case "B":
            return len(content.rstrip("=")) * 3 // 4
        case "BOOL" | "NULL":
            return 1
    raise _invalid(f"the embedded engine does not know attributes of type {kind}")


def _project(arguments: Arguments, item: Item) -> Item:
    text = arguments.get("ProjectionExpression")
    if text is None:
        return item
    names = arguments.get("ExpressionAttributeNames", {})
    wanted = [names.get(name.strip(), name.strip()) for name in text.split(",")]
    return {name: item[name] for name in wanted if name in item}


def _existing(arguments: Arguments, item: Item | None) -> dict[str, Any]:
    wanted = arguments.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
    return {"Item": item} if wanted and item is not None else {}


def _write(kind: str, arguments: Arguments) -> tables.Write:
    condition = _condition_of(arguments)
    match kind:
        case "Put":
            return tables.Write(_item(arguments["Item"]), condition=condition)
        case "Update":
            return tables.Write(parse_update(arguments), condition=condition)
    raise _invalid(f"the embedded engine does not know {kind} in a transaction")


def _cancelled(refused: tables.TransactionRefused, asked: Sequence[Arguments]) -> Refused:
    reasons = [
        {"Code": "ConditionalCheckFailed", "Message": _FAILED} | _existing(arguments, existing)
        if failed
        else {"Code": "None"}
        for failed, existing, arguments in zip(refused.failed, refused.existing, asked, strict=True)
    ]
    codes = ", ".join(str(reason["Code"]) for reason in reasons)
    return Refused(
        "TransactionCanceledException",
        f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]",
        CancellationReasons=reasons,
    )


# --- expressions -----------------------------------------------------------------------

_WORD: Final = re.compile(r"<>|<=|[=<>]|[:#]?\w+")
_IN_PYTHON: Final = {"=": "==", "<>": "!=", "AND": "and", "OR": "or"}
#: These replace the colon before the name of a value, and the number sign before that of an attribute.
_VALUE: Final = "value__"
_NAME: Final = "name__"
_COMPARATORS: Final[dict[type[ast.cmpop], Any]] = {
    ast.Eq: "=",
    ast.NotEq: "<>",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
}
_FUNCTIONS: Final[dict[str, Callable[[str], tables.Condition]]] = {
    "attribute_exists": tables.Present,
    "attribute_not_exists": tables.Missing,
}
_CLAUSE: Final = re.compile(r"\b(SET|ADD)\s+(.*?)\s*(?=\b(?:SET|ADD)\s|$)", re.DOTALL)
_SET: Final = re.compile(r"\s*(#?\w+)\s*=\s*(:\w+)\s*")
_ADD: Final = re.compile(r"\s*(#?\w+)\s+(:\w+)\s*")
_KEYS: Final = re.compile(rf"{PK} = (:\w+) AND {SK} BETWEEN (:\w+) AND (:\w+)")


def _unknown_expression(text: str) -> Refused:
    return _invalid(f"the embedded engine does not understand the expression: {text}")


@cache
def _parsed(condition: str) -> ast.expr:
    """Uses Python's own parser: its grammar of comparisons, ANDs, ORs and calls is the same."""

    def in_python(found: re.Match[str]) -> str:
        word = found[0]
        return _IN_PYTHON.get(word) or word.replace(":", _VALUE).replace("#", _NAME)

    try:
        return ast.parse(_WORD.sub(in_python, condition), mode="eval").body
    except SyntaxError:
        raise _unknown_expression(condition) from None


def _condition_of(arguments: Arguments) -> tables.Condition | None:
    """Understands ANDs and ORs of comparisons and of two functions."""
    text = arguments.get("ConditionExpression")
    if text is None:
        return None
    names = arguments.get("ExpressionAttributeNames", {})
    values = arguments.get("ExpressionAttributeValues", {})

    def attribute(word: str) -> str:
        return str(names[word.replace(_NAME, "#")] if word.startswith(_NAME) else word)

    def condition(node: ast.expr) -> tables.Condition:
        match node:
            case ast.BoolOp(op=operator, values=parts):
                return (tables.AllOf if isinstance(operator, ast.And) else tables.AnyOf)(
                    *map(condition, parts)
                )
            case ast.Call(func=ast.Name(function), args=[ast.Name(name)]) if function in _FUNCTIONS:
                return _FUNCTIONS[function](attribute(name))
            case ast.Compare(left=ast.Name(name), ops=[operator], comparators=[ast.Name(value)]):
                by = _COMPARATORS.get(type(operator))
                match values.get(value.replace(_VALUE, ":")):
                    case {"N": number} if by:
                        return tables.Compared(attribute(name), by, int(number))
                    case {"S": content} if by:
                        return tables.Compared(attribute(name), by, content)
        raise _unknown_expression(text)

    return condition(_parsed(text))


def parse_update(arguments: Arguments) -> tables.Update:
    """`SET name = :value, … ADD name :number, …`."""
    text = arguments["UpdateExpression"].strip()
    names, values = arguments.get("ExpressionAttributeNames", {}), arguments["ExpressionAttributeValues"]
    sets: Item = {}
    adds: dict[str, int] = {}
    clauses = list(_CLAUSE.finditer(text))
    if not clauses or clauses[0].start():
        raise _unknown_expression(text)
    for kind, part in ((clause[1], part) for clause in clauses for part in clause[2].split(",")):
        match = (_SET if kind == "SET" else _ADD).fullmatch(part)
        if match is None:
            raise _unknown_expression(text)
        name, value = names.get(match[1], match[1]), values[match[2]]
        if kind == "SET":
            sets[name] = value
        else:
            adds[name] = int(value["N"])
    return tables.Update(_key(arguments["Key"]), sets, adds)


def parse_key_condition(arguments: Arguments) -> tuple[str, str, str]:
    """Returns the partition, the least and the greatest sort key."""
    text = arguments["KeyConditionExpression"]
    found = _KEYS.fullmatch(text)
    if found is None:
        raise _unknown_expression(text)
    pk, low, high = (arguments["ExpressionAttributeValues"][place]["S"] for place in found.groups())
    return pk, low, high
