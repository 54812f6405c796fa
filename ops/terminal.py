"""Where the parts' lines go: all into var/log/<part>.log, the ones that matter to the terminal."""

import logging
import os
import re
import sys
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path

LOG_BYTES = 10 * 1024**2
LOG_FILES_KEPT = 3
"""At most 40 MiB a part."""
LINE_COLUMNS = 180
"""Longer lines are cut on the terminal only."""
_NAME_COLUMNS = 6
_MATTERS = re.compile(r"\b(WARN|WARNING|ERROR|CRITICAL|FATAL|Traceback)\b|\w(Error|Exception): ")


class PartLog:
    """Takes a part's output in pieces and passes whole lines on (a stream of circus)."""

    def __init__(
        self, name: str, log_dir: Path, *, show_all: bool, on_line: Callable[[str], None]
    ) -> None:
        self._name = name
        self._show_all = show_all
        self._on_line = on_line
        self._rest = b""
        self._file = RotatingFileHandler(
            log_dir / f"{name}.log", maxBytes=LOG_BYTES, backupCount=LOG_FILES_KEPT, delay=True
        )
        self._file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))

    def __call__(self, piece: dict[str, bytes]) -> None:
        *lines, self._rest = (self._rest + piece["data"]).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace").rstrip("\r"))

    def _take(self, line: str) -> None:
        self._file.emit(logging.makeLogRecord({"msg": line}))
        if self._show_all or _MATTERS.search(line):
            say(line, self._name)
        self._on_line(line)

    def close(self) -> None:
        if self._rest:
            self._take(self._rest.decode(errors="replace"))
            self._rest = b""
        self._file.close()


def say(line: str, name: str = "ferry") -> None:
    """Prints one line with its part's name; a terminal that has gone away is no reason to stop."""
    try:
        print(f"{name:<{_NAME_COLUMNS}} | {line[:LINE_COLUMNS]}", flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process's life


def own_log(log_dir: Path) -> logging.Logger:
    """Returns the supervisor's own log, var/log/ferry.log; circus's messages go there too."""
    handler = RotatingFileHandler(
        log_dir / "ferry.log", maxBytes=LOG_BYTES, backupCount=LOG_FILES_KEPT
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name in ("ferry", "circus"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        logger.propagate = False
    return logging.getLogger("ferry")
