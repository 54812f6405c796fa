"""The pools' own limits in memory."""

from collections.abc import Mapping

from controlplane.admission.verdict import NO_POOL_LIMITS, PoolLimits
from controlplane.fleet.models import Pool
from controlplane.following import Follower


class PoolLimitBook(Follower):
    """One a web process. While the database is away the last known limits count."""

    what = "pools' limits"

    def __init__(self) -> None:
        super().__init__()
        self._limits: Mapping[str, PoolLimits] = {}

    def of(self, pool: str) -> PoolLimits:
        """Returns a pool's limits; none for a pool that the database does not have. Never waits."""
        return self._limits.get(pool, NO_POOL_LIMITS)

    def read(self) -> None:
        """One query. Raises: DatabaseError."""
        rows = Pool.objects.values_list(
            "name", "requests_per_minute", "tokens_per_minute", "concurrency"
        )
        self._limits = {name: PoolLimits(*numbers) for name, *numbers in rows}
