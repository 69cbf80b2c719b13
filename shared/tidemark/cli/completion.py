"""Completion of commands and names of streams in shells: the scripts, and the quotes around names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Final

from click import shell_completion as shells

#: A word of a command line up to the cursor, where a quote may still be open.
_WORD: Final = re.compile(r"""(?:[^\s'"\\]|\\.|\\$|'[^']*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|\\?$))+""")
_QUOTE: Final = re.compile(r"""\\.|'[^']*'|"(?:[^"\\]|\\.)*"|(['"])""")
#: How a text is written behind an open quote, or without one.
_ESCAPED: Final[Mapping[str, Callable[[str], str]]] = {
    "'": lambda text: text.replace("'", r"'\''"),
    '"': lambda text: re.sub(r'(["$`\\])', r"\\\1", text).replace("!", "\"'!'\""),
    "": lambda text: re.sub(r"([^\w./:@%+=,-])", r"\\\1", text),
}


@shells.add_completion_class
class QuotingBash(shells.BashComplete):
    """Completes whole words, where click completes the part behind a `:` or `=`; quotes the rest of each
    name, because bash inserts a completion as it is."""

    source_template = """\
%(complete_func)s() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            *) COMPREPLY+=("${line#*,}") ;;
        esac
    done < <(COMP_LINE=${COMP_LINE:0:COMP_POINT} COMP_TEXT=$2 %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        line, replaced = os.environ["COMP_LINE"], os.environ["COMP_TEXT"]
        words = [*_WORD.finditer(line)]
        start = words[-1].start() if words and words[-1].end() == len(line) else len(line)
        #: Bash replaces the text behind a character of COMP_WORDBREAKS, or behind an open quote.
        self._kept = line[start:].removesuffix(replaced)
        return shells.split_arg_string(line[:start])[1:], "".join(shells.split_arg_string(line[start:]))

    def format_completion(self, item: shells.CompletionItem[str]) -> str:
        quote = next((found[1] for found in _QUOTE.finditer(self._kept) if found[1]), "")
        left = item.value.removeprefix("".join(shells.split_arg_string(self._kept)))
        escaped = _ESCAPED[quote](left)
        # Bash closes the quote, but for a word that ends with one.
        return f"{item.type},{escaped}{quote if quote and escaped.endswith(quote) else ''}"


@shells.add_completion_class
class CommaFish(shells.FishComplete):
    """Takes a name with a comma whole."""

    source_template = shells.FishComplete.source_template.replace('split "," ', 'split --max 1 "," ')


SHELLS: Final = {"bash": QuotingBash, "zsh": shells.ZshComplete, "fish": CommaFish}
