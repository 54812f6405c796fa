"""The pools that this web process serves, and which of them a request means."""

import functools
from collections.abc import Sequence

from controlplane.gateway.errors import ApiError
from controlplane.gateway.runtime import Runtime
from controlplane.tenants.selectors import KeyPolicy
from engine_pool.client import pool_client


class Pools:
    """One a web process; holds a Runtime a pool."""

    def __init__(self, default: Runtime) -> None:
        self.default = default
        self._is_stopping = False

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    def all(self) -> Sequence[Runtime]:
        """Returns the runtimes of all pools, the default one first."""
        return [self.default]

    def get(self, pool: str) -> Runtime | None:
        """Returns the runtime of a pool by its name."""
        return next((r for r in self.all() if r.client.config.pool == pool), None)

    def models(self) -> dict[str, Runtime]:
        """Returns every name, aliases too, that clients may ask for."""
        return {runtime.model_name: runtime for runtime in self.all() if runtime.model_name}

    def for_model(self, name: object, policy: KeyPolicy) -> Runtime:
        """Returns the pool that serves the model; without a name, the default one (as vLLM does).

        Raises: ApiError 404 for a model that does not exist or that the key may not use: whether
        others have it is nobody's business; 503 while none is loaded.
        """
        if not self.models():
            # Says why nothing is served yet.
            self.default.ready_front()
        if name is None:
            name = self.default.model_name
        if not isinstance(name, str) or not name:
            raise ApiError(400, "`model` must be a model's name.", param="model")
        runtime = self.models().get(name)
        if runtime is None or not policy.allows_model(name):
            raise ApiError(
                404, f"The model `{name}` does not exist.", "model_not_found", param="model"
            )
        return runtime

    def not_ready(self) -> str | None:
        """Returns why no chat would be answered now, None when one would."""
        reasons = [runtime.not_ready() for runtime in self.all()]
        return None if None in reasons else next(filter(None, reasons), None)

    async def start(self) -> None:
        """Begins to follow all pools. Safe to call again."""
        for runtime in self.all():
            await runtime.start()

    def begin_stop(self) -> None:
        """Takes no new requests, of any pool (Runtime.begin_stop)."""
        self._is_stopping = True
        for runtime in self.all():
            runtime.begin_stop()

    async def stop(self) -> None:
        """Ends what `start` began."""
        for runtime in self.all():
            await runtime.stop()


@functools.cache
def pools() -> Pools:
    """Returns this process's one."""
    return Pools(Runtime(pool_client()))
