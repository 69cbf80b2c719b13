"""Runs a command that dies with its parent, even when the parent is killed with -9 (Linux).

`python guard.py <parent's process id> <command> <argument>…`: asks the kernel for the signal, then becomes
the command. Doing this between fork and exec (`preexec_fn`) is not safe in a process that has threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent_pid: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent_pid:
        # Otherwise the parent died before the line above: no signal will come any more.
        os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
