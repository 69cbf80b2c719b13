"""The schedule of faults is a function of the seed, and leaves no kind of fault out."""

from __future__ import annotations

from itertools import islice, takewhile

from tests.chaos.schedule import CLIENTS, GROUP, SERVER, Fault, Kind, make_schedule


def faults_until(seconds: float, seed: int) -> list[Fault]:
    return list(takewhile(lambda fault: fault.at < seconds, make_schedule(seed)))


def test_a_seed_gives_one_schedule_in_the_order_of_its_times() -> None:
    faults = faults_until(600, seed=7)
    assert faults == faults_until(600, seed=7) == sorted(faults, key=lambda fault: fault.at)
    assert faults != faults_until(600, seed=8)


def test_five_minutes_hold_every_fault_everywhere_for_any_seed() -> None:
    whole = {(fault.kind, fault.where) for fault in faults_until(3600, seed=0)}
    assert {kind for kind, _ in whole} == set(Kind)
    for seed in range(20):
        assert {(fault.kind, fault.where) for fault in faults_until(300, seed=seed)} == whole


def test_a_disk_that_cannot_be_filled_is_left_out() -> None:
    faults = list(islice(make_schedule(7, with_disk=False), 500))
    assert Kind.DISK_FULL not in {fault.kind for fault in faults}
    assert Kind.KILL in {fault.kind for fault in faults if fault.where == GROUP}


def test_with_the_embedded_engine_only_server_clients_and_disk_are_hit() -> None:
    faults = list(islice(make_schedule(7, is_embedded=True), 500))
    assert {fault.where for fault in faults} == {SERVER, CLIENTS}
    assert {Kind.KILL, Kind.STOP, Kind.DISK_FULL, Kind.REPEAT} <= {fault.kind for fault in faults}
