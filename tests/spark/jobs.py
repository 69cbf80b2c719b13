"""The jobs of `pipeline/`, run in the session of the tests."""

from typing import Any

import pytest

from tests.infra.jobs import load_job
from tests.support import World
from tidemark.spark.failures import Exit
from tidemark.spark.job import run_with


class Jobs:
    """`where` are the arguments that name the table and its bucket."""

    def __init__(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        self.where = ["--table", world.table_name, "--blob-bucket", world.bucket_name]
        self._capsys = capsys

    def start(self, name: str, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        module: Any = load_job(name)
        code = run_with(name, module.parser(), getattr(module, name), arguments)
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err

    def run(self, name: str, *arguments: str) -> str:
        """Of a job that succeeds: its summary."""
        code, said, err = self.start(name, *arguments)
        assert code == Exit.DONE, err
        return said

    def refuse(self, name: str, *arguments: str) -> str:
        """Of a job whose arguments are refused: the line that says why."""
        code, said, err = self.start(name, *arguments)
        assert (code, said) == (Exit.YOUR_INPUT, ""), err
        return err.splitlines()[-1]
