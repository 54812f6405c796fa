"""Which pool somebody looks at: the one that the request's URL names (`?pool=`), else the default
one.

Kept for the length of a request, so that every page and every door of `/api/v1` follows it without
passing it on by hand.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from controlplane.errors import NotVisible
from engine_pool.client import PoolClient, served_clients

_chosen: ContextVar[str] = ContextVar("chosen_pool", default="")


def chosen_pool() -> str:
    """Returns the name that was asked for; empty: none."""
    return _chosen.get()


@contextmanager
def pool_chosen(name: str) -> Iterator[None]:
    """Looks at this pool within the block; empty: the default one."""
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def served_pool(name: str = "") -> PoolClient | None:
    """Returns the client of a pool; without a name of the chosen one, without that of the first.

    None: this process serves no pools yet; the environment's is the one then.
    Raises: NotVisible when it is not, or no longer, served.
    """
    clients, wanted = served_clients(), name or chosen_pool()
    found = next((c for c in clients if not wanted or c.config.pool == wanted), None)
    if found is None and clients:
        raise NotVisible(f"pool: there is no pool {wanted}.")
    return found
