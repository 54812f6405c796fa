"""Plays made-up moves slowly, for screenshots and whoever looks at the pages."""

from collections.abc import Iterator
from dataclasses import replace

from migration.report import MoveReport
from tests.web.moves import aborted, committed, going_on


def slower(report: MoveReport, factor: float) -> MoveReport:
    """Returns the same move at a slower pace; the report's own times of day stay."""

    def times(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(at * factor for at in values)

    def stretched(value: float | None) -> float | None:
        return None if value is None else value * factor

    return replace(
        report,
        stages=tuple(
            replace(s, started_ms=s.started_ms * factor, took_ms=s.took_ms * factor)
            for s in report.stages
        ),
        messages=tuple(replace(m, at_ms=m.at_ms * factor) for m in report.messages),
        paused_ms=stretched(report.paused_ms),
        committed_ms=stretched(report.committed_ms),
        first_token_ms=stretched(report.first_token_ms),
        ended_ms=stretched(report.ended_ms),
        downtime_ms=stretched(report.downtime_ms),
        source_token_ms=times(report.source_token_ms),
        destination_token_ms=times(report.destination_token_ms),
    )


class Player:
    """Plays moves between the instances of a made-up pool, one after another."""

    SLOWER = 9.0
    """A move of 0.4 s takes so many times longer, so that one can see it."""
    EVERY_S = 2.3
    PAIRS = (("i-02", "i-03"), ("i-01", "i-02"), ("i-02", "i-05"))

    def __init__(self, names: list[str], now_unix_s: float) -> None:
        self._begin_unix_s = now_unix_s
        self._pairs = [p for p in self.PAIRS if set(p) <= set(names)]
        self._ended = 0

    def reports(self, now_unix_s: float) -> Iterator[MoveReport]:
        """Yields what the sources would report now; the end of a move only once."""
        if not self._pairs:
            return
        begun = int((now_unix_s - self._begin_unix_s) / self.EVERY_S) + 1
        for number in range(self._ended, begun):
            report = self._at(number, now_unix_s)
            if report.state.is_end and number == self._ended:
                self._ended += 1
            yield report

    def _at(self, number: int, now_unix_s: float) -> MoveReport:
        started_unix_s = self._begin_unix_s + number * self.EVERY_S
        elapsed_ms = (now_unix_s - started_unix_s) * 1000 / self.SLOWER
        source, destination = self._pairs[number % len(self._pairs)]
        is_abort = number % 5 == 4
        if is_abort and elapsed_ms > 180:
            report = aborted()
        else:
            report = committed() if elapsed_ms > 380 else going_on(elapsed_ms)
        return replace(
            slower(report, self.SLOWER),
            migration_id=f"play-{int(self._begin_unix_s)}-{number}",
            request_id=f"{source}-r{number % 8}",
            seq=10_000_000 if report.state.is_end else int(max(0.0, elapsed_ms)),
            source=source,
            destination=destination,
            started_unix_s=started_unix_s,
            at_unix_s=now_unix_s,
        )
