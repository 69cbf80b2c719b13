"""A small share of the fuzzing with every run of the tests; `python -m tests.fuzz` does the rest."""

from tests.fuzz.session import fuzz_events, fuzz_frames, fuzz_published, read_published
from tests.stack.engines import LocalServices

REQUESTS = 400
SEED = 20_240_501


def test_requests_made_from_the_published_document(services: LocalServices) -> None:
    """No 5xx, no undocumented status, header or body, no change that was not acknowledged. Streams are packed
    meanwhile, and packs again: no answer and no state may show it."""
    subject = fuzz_published(services, REQUESTS, SEED)
    assert subject.statuses.total() >= REQUESTS // 2
    assert {200, 201, 204, 400, 404, 409} <= subject.statuses.keys(), "the fuzzing has lost its teeth"


def test_every_answer_of_a_server_with_data_is_as_published(services: LocalServices) -> None:
    statuses = read_published(services)
    assert len(statuses) > 40
    refused = {where for where, status in statuses.items() if status >= 400}
    assert refused <= {"get /v1/socket", "head /v1/socket"}


def test_raw_events(services: LocalServices) -> None:
    subject = fuzz_events(services, REQUESTS, SEED)
    assert subject.statuses.total() >= REQUESTS // 2
    assert {200, 201, 204, 400, 404, 405} <= subject.statuses.keys(), "the fuzzing has lost its teeth"
    assert subject.packs > 0, "nothing was packed"


def test_frames_of_sockets(services: LocalServices) -> None:
    subject = fuzz_frames(services, REQUESTS, SEED)
    assert {200, 400, 404} <= subject.statuses.keys(), "the fuzzing has lost its teeth"
