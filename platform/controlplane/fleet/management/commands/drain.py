"""`manage.py drain INSTANCE | --node NODE [--wait]`: drains an instance or a node from a shell.

Needs the database and, to say how far it is, the store; no web process. What it wants is a row like
what a person wants on the pages: the pool process follows it, and goes on when this command has
ended.

Exit code: 0 done (with --wait: verified empty), 1 not empty when the time was up, 2 wrong input or
refused, 3 somebody released it meanwhile.
"""

import getpass
import sys
import time
from argparse import ArgumentParser
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand
from django.db import DatabaseError, close_old_connections

from controlplane.errors import Refused
from controlplane.fleet.drain_words import node_words, progress_words
from controlplane.fleet.management.installation import enter_installation
from controlplane.fleet.wish_rows import LEAVING
from controlplane.fleet.wish_selectors import (
    InstanceDrain,
    NodeDrain,
    instance_drain_get,
    node_drain_now,
)
from controlplane.fleet.wish_services import (
    instance_drain,
    instance_release,
    instance_stop,
    node_drain,
    node_release,
)
from controlplane.fleet.wish_terms import Terms
from controlplane.tenants.access import Access, Role
from engine_pool.policy.wishes import Leftover

DONE: Final = 0
TIME_IS_UP: Final = 1
WRONG: Final = 2
RELEASED: Final = 3
LOOK_EVERY_S: Final = 1.0
"""The pool process says once a second how far it is."""
TOLD_EVERY_S: Final = 30.0
"""A line that stays the same is repeated after so long: whoever waits sees that it goes on."""


class Command(BaseCommand):
    help = "Drains an instance or a node, and says when it is safe to stop."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("instance", nargs="?", default="", help="i-02")
        parser.add_argument("--node", default="", help="all instances of this node instead")
        parser.add_argument("--pool", default="", help="the instance must be of this pool")
        parser.add_argument("--stop", action="store_true", help="end the engines once empty")
        parser.add_argument("--deadline", type=float, metavar="S", help="seconds until --leftover")
        parser.add_argument(
            "--leftover", choices=[x.value for x in Leftover], default=Leftover.WAIT.value,
            help="what happens at the deadline to what is still there (wait)",
        )  # fmt: skip
        parser.add_argument("--wait", action="store_true", help="until it is verified empty")
        parser.add_argument("--timeout", type=float, metavar="S", help="longest wait (for ever)")
        parser.add_argument("--release", action="store_true", help="let it serve again")
        parser.add_argument("--reason", default="", help="for the audit")
        parser.add_argument(
            "--force", action="store_true",
            help="also the last instance that serves, and another person's wish",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        enter_installation()
        sys.exit(self.run(options))

    def run(self, options: dict[str, Any]) -> int:
        """Returns the exit code."""
        if problem := _problem(options):
            return self._fail(problem)
        try:
            _act(options)
            if options["release"]:
                self.stdout.write(f"{options['node'] or options['instance']} is released.")
                return DONE
            if options["wait"]:
                return self._wait(options)
            self.stdout.write(_line(_found(options)))
        except ValidationError as error:
            return self._fail(_words(error))
        except Refused as error:
            return self._fail(str(error))
        except DatabaseError as error:
            return self._fail(f"the database does not answer: {type(error).__name__}")
        return DONE

    def _wait(self, options: dict[str, Any]) -> int:
        until_s = time.monotonic() + (options["timeout"] or float("inf"))
        said, said_s = "", -TOLD_EVERY_S
        while True:
            found = self._look(options)
            if found is not None:
                line, now_s = _line(found), time.monotonic()
                if line != said or now_s - said_s >= TOLD_EVERY_S:
                    self.stdout.write(line)
                    said, said_s = line, now_s
                if found.is_safe:
                    return DONE
                if not _is_wanted(found):
                    self.stderr.write("It was released meanwhile: it serves again.")
                    return RELEASED
            if time.monotonic() >= until_s:
                self.stderr.write(
                    f"Not empty after {options['timeout']:g} s. It goes on; --release ends it."
                )
                return TIME_IS_UP
            time.sleep(max(0.0, min(LOOK_EVERY_S, until_s - time.monotonic())))

    def _look(self, options: dict[str, Any]) -> InstanceDrain | NodeDrain | None:
        """Returns how far it is; None while the database is away, which ends no drain."""
        try:
            return _found(options)
        except DatabaseError as error:
            self.stderr.write(f"The database does not answer: {type(error).__name__}")
            close_old_connections()
            return None

    def _fail(self, words: str) -> int:
        self.stderr.write(words)
        return WRONG


def _problem(options: dict[str, Any]) -> str:
    if bool(options["instance"]) == bool(options["node"]):
        return "Name an instance, or a node with --node."
    if options["pool"] and options["node"]:
        return "--pool: a node's instances may be of any pool."
    if options["timeout"] is not None and not options["timeout"] > 0:
        return "--timeout: must be above 0."
    if options["timeout"] is not None and not options["wait"]:
        return "--timeout: needs --wait."
    if options["release"] and (options["wait"] or options["stop"]):
        return "--release: nothing is drained, so there is nothing to wait for or to stop."
    return ""


def _act(options: dict[str, Any]) -> None:
    """Raises: Refused, ValidationError, DatabaseError."""
    access = Access(f"command:{_who()}"[:150], platform=Role.OPERATOR)
    instance, node = options["instance"], options["node"]
    terms = Terms(
        reason=options["reason"],
        deadline_s=options["deadline"],
        leftover=Leftover(options["leftover"]),
        is_forced=options["force"],
    )
    if options["pool"]:
        _check_pool(options)
    if options["release"]:
        if node:
            node_release(access=access, node=node, terms=terms)
        else:
            instance_release(access=access, instance=instance, terms=terms)
    elif node:
        node_drain(access=access, node=node, terms=terms, is_stopped=options["stop"])
    elif options["stop"]:
        instance_stop(access=access, instance=instance, terms=terms)
    else:
        instance_drain(access=access, instance=instance, terms=terms)


def _who() -> str:
    """Returns the shell's user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        return "nobody"


def _check_pool(options: dict[str, Any]) -> None:
    found = instance_drain_get(options["instance"])
    if found.pool != options["pool"]:
        raise ValidationError({"pool": f"{found.instance} is of pool {found.pool}"})


def _found(options: dict[str, Any]) -> InstanceDrain | NodeDrain:
    if options["node"]:
        return node_drain_now(options["node"])
    return instance_drain_get(options["instance"])


def _is_wanted(found: InstanceDrain | NodeDrain) -> bool:
    if isinstance(found, InstanceDrain):
        return found.wish.wanted in LEAVING
    return found.row is not None and found.row.wanted in LEAVING


def _line(found: InstanceDrain | NodeDrain) -> str:
    if isinstance(found, InstanceDrain):
        return progress_words(found)
    return "\n".join([node_words(found), *(f"  {progress_words(i)}" for i in found.instances)])


def _words(error: ValidationError) -> str:
    if hasattr(error, "error_dict"):
        name, words = next(iter(error.message_dict.items()))
        return f"{name}: {' '.join(words)}"
    return " ".join(error.messages)
