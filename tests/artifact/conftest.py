"""There must be something built."""

import pytest

from benchmarks.layer import BUILD


@pytest.fixture(scope="session")
def built() -> None:
    if not (BUILD / "template.yaml").is_file():
        pytest.fail("there is nothing built: run `make build` first")
