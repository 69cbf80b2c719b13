"""The code of the guide, as it is printed; and the commands of each page."""

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from shlex import shlex, split
from typing import Any

import click
import pytest

from tidemark import Stream
from tidemark.cli.__main__ import main
from tidemark.spark.job import archive_here

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
WRITE, READ, STOP, WITH_ASYNCIO, LIST, _ = BLOCKS


def test_what_is_written_is_read(tidemark_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        exec((WRITE + READ).replace("http://127.0.0.1:4437", tidemark_url), {})
        assert capsys.readouterr().out == "Why are there two tides a day? Because the earth turns. "
    assert Stream(f"{tidemark_url}/v1/stream/answers/tides").head().ttl_seconds == 86_400


def test_a_reader_stops_the_writer_in_its_loop(tidemark_url: str) -> None:
    """The model goes on for ever, were it not stopped."""
    printed: dict[str, Any] = {}
    exec(WRITE.replace("http://127.0.0.1:4437", tidemark_url), printed)
    reader = Stream(f"{printed['url']}/again")

    def llm(_question: str) -> Iterator[str]:
        yield "Because "
        reader.request_stop()
        while True:
            yield "... "

    exec(STOP, printed | {"llm": llm})
    shown = reader.read()
    assert shown.text.startswith("Because ")
    assert shown.text.endswith("(stopped)")
    assert shown.closed


def test_the_same_with_asyncio(tidemark_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(WITH_ASYNCIO.replace("http://127.0.0.1:4437", tidemark_url), {"__name__": "printed"})
    assert capsys.readouterr().out == "{'step': 1, 'tool': 'search'}\n"


def test_the_streams_of_a_server_are_listed(tidemark_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = "Why are there two tides a day? Because the earth turns. "
    Stream(f"{tidemark_url}/v1/stream/answers/tides/again").delete(missing_ok=True)
    exec((WRITE + LIST).replace("http://127.0.0.1:4437", tidemark_url), {})
    assert capsys.readouterr().out == f"answers/tides {len(text)} {text}\n"


#: A shell's block, or code inside a sentence, and what one says behind `tidemark`.
CODE = re.compile(r"^ *```(?:sh|bash)\n(.*?)^ *```|(?<!`)`([^`\n]+)`(?!`)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|(?<=[\s(/]))tidemark (?!import)(.+)", re.MULTILINE)
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def check_command(command: click.Command, words: list[str]) -> click.Command:
    """Return the command that the words run. Raises NoSuchOption. Words in capitals stand for others."""
    context = click.Context(command, **command.context_settings)
    _, rest, _ = command.make_parser(context).parse_args(words)
    if isinstance(command, click.Group) and rest and re.fullmatch(r"[a-z-]+", rest[0]):
        found = command.get_command(context, rest[0])
        assert found, f"there is no command {rest[0]}"
        return check_command(found, rest[1:])
    return command


def test_each_printed_command_and_option_exists() -> None:
    """Also in sentences, which no test runs."""
    lines = [line for page in PAGES for found in CODE.findall(page.read_text()) for line in found]
    printed = [found for line in lines for found in COMMAND.findall(line.replace("\\\n", " "))]
    assert len(printed) > 20
    for text in printed:
        words = shlex(text, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        check_command(main, [*takewhile(lambda word: not re.fullmatch(r"[|&;<>()]+", word), words)])
    with pytest.raises(AssertionError, match="no command head"):
        check_command(main, ["--url", "u", "head", "chat/42"])
    with pytest.raises(click.NoSuchOption, match="--first"):
        check_command(main, ["tail", "chat/42", "--first", "1"])


def commands_of(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from commands_of(each)


def test_the_help_of_each_command_ends_with_an_example_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):  # Its options are the job's.
        archive_here(["--help"])
    helps = {main.commands["archive"]: capsys.readouterr().out}
    for command in commands_of(main):
        text = helps.get(command) or command.epilog or ""
        [example] = re.findall(r"^Example: .*?\b(tidemark .{,60})$", text, re.MULTILINE)
        words = [*takewhile(lambda word: word != ">", split(example.removesuffix(')"'))[1:])]
        run = check_command(main, words)
        assert run is command or isinstance(command, click.Group), example
