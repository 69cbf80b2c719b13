"""Programs that a test needs and that come with the machine, not with the project."""

import os
import shutil

import pytest

#: Where daemons are, too: a user's own path may leave them out.
_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin"


def find(*names: str) -> str | None:
    """The first of these that is installed."""
    return next((found for name in names if (found := shutil.which(name, path=_PATH))), None)


def needs(program: str | None, name: str, package: str) -> pytest.MarkDecorator:
    """Without the program the test is skipped, and says what to install. Where CI runs it (every CI service
    sets `CI`) it goes on and fails: there nobody reads what was skipped."""
    missing = program is None and not os.environ.get("CI")
    return pytest.mark.skipif(missing, reason=f"{name} is not installed (Debian: {package})")
