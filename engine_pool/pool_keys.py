"""Where a pool's part of the store is. What concerns requests (logs, routes, records) is not a
pool's: request ids are unique."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolKeys:
    """Names of one pool's keys in the store, and of its instances."""

    namespace: str = ""
    """Empty: the pool that the environment names, whose keys and instances have plain names."""

    def _key(self, name: str) -> str:
        return f"ferry:pool:{self.namespace}:{name}" if self.namespace else f"ferry:{name}"

    @property
    def statuses(self) -> str:
        return self._key("statuses")

    @property
    def loads(self) -> str:
        return self._key("loads")

    @property
    def events(self) -> str:
        return self._key("events")

    @property
    def samples(self) -> str:
        return self._key("samples")

    @property
    def moves(self) -> str:
        return self._key("moves")

    @property
    def moves_ended(self) -> str:
        return self._key("moves:ended")

    @property
    def fleet(self) -> str:
        """The channel on which all of the pool's changes are told."""
        return self._key("fleet")

    @property
    def migration(self) -> str:
        """What is known about its moves in general (move_facts.py)."""
        return self._key("migration")

    @property
    def rebalancing(self) -> str:
        return self._key("rebalancing")

    @property
    def preflight(self) -> str:
        """The last result of a pre-flight of moves."""
        return self._key("migration:preflight")

    @property
    def preflight_running(self) -> str:
        """Held while a pre-flight measures; two at once would measure each other."""
        return self._key("migration:preflight-running")

    @property
    def events_copied_to(self) -> str:
        """The last event that is in the database."""
        return self._key("events-copied-to")

    @property
    def moves_copied_to(self) -> str:
        return self._key("moves-copied-to")

    @property
    def all(self) -> tuple[str, ...]:
        """Everything that is kept; the channel keeps nothing."""
        return (
            self.statuses,
            self.loads,
            self.events,
            self.samples,
            self.moves,
            self.moves_ended,
            self.migration,
            self.rebalancing,
            self.preflight,
            self.preflight_running,
            self.events_copied_to,
            self.moves_copied_to,
        )

    @property
    def instance_prefix(self) -> str:
        return self.namespace or "i"


FIRST: PoolKeys = PoolKeys()
"""Of the pool that the environment names."""


def demand_key(pool: str) -> str:
    """Returns where a web process says that requests wait for a pool's first instance
    (holding.py)."""
    return f"ferry:pool:{pool}:demand"
