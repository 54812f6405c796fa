"""What is asked of admission, and what a request holds while it lives."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from controlplane.admission.estimate import Estimate
from controlplane.tenants.selectors import Limits
from engine_pool.errors import PoolError


class Used(Protocol):
    """What a request has used so far; gateway.call.Call is one."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int

    @property
    def is_accepted(self) -> bool:
        """An engine has taken it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that wants to be admitted."""

    request_id: str
    tenant_id: int
    pool: str
    model: str
    estimate: Estimate
    limits: Limits


@dataclass(slots=True, eq=False)
class Lease:
    """Of a request that is under way in this web process."""

    request_id: str
    model: str
    used: Used
    public_id: str
    """Of the key, to end the request when that is revoked; empty: the playground's."""
    fail: Callable[[PoolError], None]
    """Ends the request with a typed error."""


@dataclass(frozen=True, slots=True)
class Change:
    """Of a lease, for the script (scripts.CHANGE)."""

    what: str
    request_id: str
    ms: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    cost_units: int = 0

    def args(self, owner: str) -> tuple[str | int, ...]:
        """Returns it as the script takes it."""
        return (
            *(self.what, self.request_id, owner, self.ms),
            *(self.prompt_tokens, self.cached_tokens, self.tokens, self.cost_units),
        )
