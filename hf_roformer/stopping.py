"""Ctrl-C and SIGTERM end a run after the step, with a checkpoint; the second one ends it at once."""

import logging
import os
import signal
import threading
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(SystemExit):
    """A run left because it was asked to; the exit code is the shell's for the signal."""

    def __init__(self, signum: int, words: str) -> None:
        super().__init__(128 + signum)
        self.words = words

    def __str__(self) -> str:
        return self.words


class StopRequest:
    """Remember the first signal, and leave at once on the second."""

    def __init__(self) -> None:
        self.signum = 0
        self._process = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        self.signum, self._process = 0, os.getpid()
        # only the main thread may take signals
        if threading.current_thread() is threading.main_thread():
            self._before = {name: signal.signal(name, self._take) for name in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for name, handler in self._before.items():
            signal.signal(name, handler)
        self._before = {}

    def _take(self, signum: int, _: FrameType | None) -> None:
        # a dataloader's worker, forked with this handler, hears Ctrl-C too and goes on
        if os.getpid() != self._process:
            return
        if self.signum:
            os._exit(128 + signum)
        self.signum = signum
        logger.warning(
            "%s: finishing the step, then a checkpoint, then leaving; once more leaves at once",
            signal.Signals(signum).name,
        )
