"""A fresh table and bucket for each test."""

from tests.log.conftest import world  # noqa: F401 - a fixture
