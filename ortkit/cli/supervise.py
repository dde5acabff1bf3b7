"""Run the command line in a child process, so that a crash of native code is one line too.

ONNX Runtime and kernel libraries run in the process that calls them, and a malformed model can
make them end it by a signal. The process forks before anything heavy is imported: 1 ms.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from ortkit.cli.main import USAGE

_SI_KERNEL = 0x80  # asm-generic/siginfo.h: a terminal sent the signal, to every process on it
#: What a user or a system ends a command with.
_PASSED_ON = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


def supervised(run: Callable[[], int]) -> int:
    """Call `run` in a child process and return its exit code; a crash is one line and code 2."""
    if not hasattr(signal, "sigwaitinfo"):
        return run()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a caller that ignores it hands that on
    watched = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        from ortkit.parent import end_with_parent

        end_with_parent(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return run()
    status = _wait(child, watched)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    return _crashed(os.WTERMSIG(status))


def _wait(child: int, watched: set[signal.Signals]) -> int:
    """Pass signals on until the child ends; return its status."""
    while True:
        found = signal.sigwaitinfo(watched)
        if found.si_signo != signal.SIGCHLD:
            if found.si_code != _SI_KERNEL:  # else the child has got it, too
                os.kill(child, found.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended == child:
            return status


def _crashed(number: int) -> int:
    name = signal.strsignal(number) or ""
    if number in _PASSED_ON:  # end as the child did
        # Files are renamed once they are whole.
        sys.stderr.write(
            f"ortkit: the command was ended by signal {number} ({name}); no file is half written\n"
        )
        sys.stderr.flush()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    if number == signal.SIGKILL:
        said = "was killed (signal 9); the system may be out of memory: use smaller inputs"
    else:
        said = (
            f"crashed with signal {number} ({name}) in ONNX Runtime or a kernel library;"
            " the model or its inputs are malformed, or please report it"
        )
    sys.stderr.write(f"ortkit: the command {said}\n")
    return USAGE
