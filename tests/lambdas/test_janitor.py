"""The janitor's handler: an event of the schedule, and counts of the work done."""

from __future__ import annotations

import pytest

from tests.http.asgi import TEXT, Door
from tests.lambdas.functions import Context, Functions, load_event

SCHEDULE = load_event("janitor-schedule")


def test_a_sweep_ends_expired_streams(functions: Functions, door: Door, path: str) -> None:
    door.put(path, TEXT | {"Stream-TTL": "0"}, b"gone")
    door.put(f"{path}/stays", TEXT | {"Stream-TTL": "3600"}, b"stays")
    door.put(f"{path}/forever", TEXT, b"stays too")
    swept = functions.invoke("janitor", SCHEDULE)
    assert (swept["expired"], swept["reclaimed"]) == (1, 0)
    assert door.get(f"{path}/stays").body == b"stays"
    assert door.get(f"{path}/forever").body == b"stays too"
    assert functions.invoke("janitor", SCHEDULE)["expired"] == 0, "done once, done for good"


def test_the_janitor_stops_before_its_time_is_over_and_only_then_reports_a_metric(
    functions: Functions,
    door: Door,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It begins no entry that Lambda could interrupt; the remaining entries stay due. The alarm uses that
    metric's name. A new environment, because each reports every ten seconds."""
    monkeypatch.setitem(functions.handlers, "janitor", functions.load("janitor"))
    functions.invoke("janitor", SCHEDULE)
    assert "CloudWatchMetrics" not in capsys.readouterr().out
    door.put(path, TEXT | {"Stream-TTL": "0"}, b"gone")
    hurried = functions.invoke("janitor", SCHEDULE, Context(remaining_ms=1000))
    assert (hurried["expired"], hurried["cut_short"]) == (0, 1)
    assert '"RoundsCutShort":[1.0]' in capsys.readouterr().out.replace(" ", "")
    assert functions.invoke("janitor", SCHEDULE)["expired"] == 1
