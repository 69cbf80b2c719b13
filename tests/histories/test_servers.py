"""A few recorded histories with every run of the tests; `python -m tests.histories` records as many as it
is told to."""

from __future__ import annotations

from tests.histories.servers import KINDS_TO_ASK_FOR, Servers
from tidemark.local.engines import LocalServices

SEED = 500
HISTORIES = 5


def test_two_servers_on_one_table_are_linearizable(services: LocalServices) -> None:
    """The histories differ from run to run, because threads do: one that is wrong is printed whole."""
    servers, operations = Servers(services), 0
    for kind in KINDS_TO_ASK_FOR:
        for seed in range(SEED, SEED + HISTORIES):
            recorded = servers.record(seed, kind)
            operations += len(recorded.history)
            assert not recorded.problems, f"seed {seed} ({kind})\n" + "\n".join(recorded.problems)
    assert operations > 500
    assert servers.faults.total() > 100


def test_two_servers_that_combine_are_linearizable(services: LocalServices) -> None:
    servers, operations = Servers(services), 0
    for seed in range(SEED, SEED + 2 * HISTORIES):
        recorded = servers.record(seed, "plain", combines=True)
        operations += len(recorded.history)
        assert not recorded.problems, f"seed {seed}\n" + "\n".join(recorded.problems)
    assert operations > 250
