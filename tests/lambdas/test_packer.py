"""The handlers of packer and janitor: what concerns packs is the packer's part of the queue, all else the
janitor's."""

import pytest

from tests.http.asgi import TEXT, Door
from tests.lambdas.functions import Context, Functions, http_event, load_event

SCHEDULE = load_event("janitor-schedule")


@pytest.fixture
def packing(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> Functions:
    """The functions of a stack that packs at once."""
    monkeypatch.setenv("PACK_AFTER_SECONDS", "0")
    for name in ("write", "janitor", "packer"):
        monkeypatch.setitem(functions.handlers, name, functions.load(name))
    return functions


def write_three(packing: Functions, path: str) -> None:
    """Each append schedules a look."""
    packing(http_event("PUT", path, headers=TEXT))
    for letter in (b"a", b"b", b"c"):
        assert packing(http_event("POST", path, headers=TEXT, body=letter)).status == 204


def test_the_packer_packs_and_what_expires_is_the_janitors(packing: Functions, door: Door, path: str) -> None:
    write_three(packing, path)
    assert packing.invoke("janitor", SCHEDULE)["packed"] == 0, "which is due"
    door.put(f"{path}/short", TEXT | {"Stream-TTL": "0"}, b"gone")
    done = [packing.invoke(name, SCHEDULE) for name in ("packer", "janitor", "packer")]
    assert [(each["packed"], each["expired"]) for each in done] == [(1, 0), (0, 1), (0, 0)]
    assert door.get(path).body == b"abc"


def test_a_round_with_work_is_a_metric_and_one_without_is_none(
    packing: Functions, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The alarm is by the lag's name."""
    packing.invoke("packer", SCHEDULE)
    assert "CloudWatchMetrics" not in capsys.readouterr().out
    write_three(packing, path)
    packing.invoke("packer", SCHEDULE)
    written = capsys.readouterr().out.replace(" ", "")
    for name in ("Packs", "PackedBatches", "PackedBytes", "PackStoredBytes", "PackingLag"):
        assert f'"{name}":[' in written, name


def test_the_packer_compacts_packs(packing: Functions, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the deployed handlers, and read by the read function."""
    json = {"Content-Type": "application/json"}
    compacts = {"Stream-Compact": "last-by-key", "Stream-Compact-After": "0", "Stream-Compact-Key": "/id"}
    packing(http_event("PUT", path, headers=json | compacts))
    for body in (b'{"id":1,"n":1}', b'{"id":2,"n":2}', b'{"id":1,"n":3}', b'{"id":3,"n":4}'):
        assert packing(http_event("POST", path, headers=json, body=body)).status == 204
    assert packing.invoke("packer", SCHEDULE)["packed"] == 1
    answer = packing(http_event("GET", path))
    assert answer.body == b'[{"id":2,"n":2},{"id":1,"n":3},{"id":3,"n":4}]'
    assert answer.headers["stream-next-offset"] == "0000000000000060"
    written = capsys.readouterr().out.replace(" ", "")
    assert '"CompactedBytes":[45.0]' in written
    assert '"CompactedAwayBytes":[15.0]' in written


def test_a_packer_without_time_leaves_what_is_due(packing: Functions, path: str) -> None:
    write_three(packing, path)
    hurried = packing.invoke("packer", SCHEDULE, Context(remaining_ms=1000))
    assert (hurried["packed"], hurried["cut_short"]) == (0, 1)
    assert packing.invoke("packer", SCHEDULE)["packed"] == 1


def test_the_janitor_stops_before_its_time_is_over_and_only_then_reports_a_metric(
    packing: Functions, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The janitor begins no entry that Lambda could interrupt; the remaining entries stay due. The alarm uses
    the metric's name."""
    packing.invoke("janitor", SCHEDULE)
    assert "CloudWatchMetrics" not in capsys.readouterr().out
    packing(http_event("PUT", path, headers=TEXT | {"Stream-TTL": "0"}))
    hurried = packing.invoke("janitor", SCHEDULE, Context(remaining_ms=1000))
    assert (hurried["expired"], hurried["cut_short"]) == (0, 1)
    assert '"RoundsCutShort":[1.0]' in capsys.readouterr().out.replace(" ", "")
    assert packing.invoke("janitor", SCHEDULE)["expired"] == 1
