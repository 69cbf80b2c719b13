"""The schedule of faults is a function of the seed, and leaves no kind of fault out."""

from __future__ import annotations

import itertools

from tests.chaos.schedule import (
    CLIENTS,
    DYNAMODB,
    GROUP,
    S3,
    SERVER,
    SQS,
    Kind,
    faults_until,
    make_schedule,
)

LINKS = {DYNAMODB, S3, SQS, CLIENTS}


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert faults_until(600, seed=7) == faults_until(600, seed=7)


def test_another_seed_gives_another_schedule() -> None:
    assert faults_until(600, seed=7) != faults_until(600, seed=8)


def test_a_longer_campaign_begins_like_a_shorter_one() -> None:
    short = faults_until(60, seed=7)
    assert faults_until(600, seed=7)[: len(short)] == short


def test_faults_come_in_the_order_of_their_time() -> None:
    times = [fault.at for fault in itertools.islice(make_schedule(7), 500)]
    assert times == sorted(times)


def test_two_minutes_hold_every_kind_of_fault_of_connections_and_most_of_processes() -> None:
    faults = faults_until(120, seed=7)
    assert {fault.kind for fault in faults} >= set(Kind) - {Kind.DISK_FULL}
    assert {fault.where for fault in faults} >= {*LINKS, SERVER}


def test_five_minutes_hold_every_fault_everywhere_for_any_seed() -> None:
    whole = {(fault.kind, fault.where) for fault in faults_until(3600, seed=0)}
    for seed in range(20):
        assert {(fault.kind, fault.where) for fault in faults_until(300, seed=seed)} == whole


def test_a_disk_that_cannot_be_filled_is_left_out() -> None:
    faults = faults_until(600, seed=7, with_disk=False)
    assert Kind.DISK_FULL not in {fault.kind for fault in faults}
    assert Kind.KILL in {fault.kind for fault in faults if fault.where == GROUP}


def test_with_the_embedded_engine_only_server_clients_and_disk_are_hit() -> None:
    faults = list(itertools.islice(make_schedule(7, is_embedded=True), 500))
    assert {fault.where for fault in faults} == {SERVER, CLIENTS}
    assert {Kind.KILL, Kind.STOP, Kind.DISK_FULL, Kind.REPEAT} <= {fault.kind for fault in faults}


def test_a_stop_lasts_ten_seconds_at_most() -> None:
    stops = [fault for fault in faults_until(3600, seed=7) if fault.kind is Kind.STOP]
    assert stops
    assert all(0 < fault.seconds <= 10 for fault in stops)
