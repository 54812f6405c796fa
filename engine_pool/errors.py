"""Failures at the pool's boundary. `code` is the OpenAI-style error code that a client sees."""


class PoolError(Exception):
    """A failure of the pool or the store. `retryable`: whether sending the same request again may
    work."""

    code = "pool_error"
    retryable = True


class NoInstance(PoolError):
    """No instance takes requests now."""

    code = "server_is_overloaded"


class PoolStarting(PoolError):
    """No instance of the pool has served for as long as requests wait for its first one."""

    code = "pool_starting"


class InstanceLost(PoolError):
    """The instance that served the request died."""

    code = "instance_lost"


class InstanceLeaving(PoolError):
    """A living engine sends the request elsewhere: written by engines, never seen by clients."""

    code = "instance_leaving"


class RequestFatal(PoolError):
    """Engines died with the request, again and again, before it got a token: it is not tried on
    more of them."""

    code = "request_fatal"
    retryable = False


class ReplayRefused(PoolError):
    """The request's engine was lost, and it cannot be shown that another one would go on with the
    same answer; the message says why."""

    code = "replay_refused"


class StoreUnavailable(PoolError):
    """The store does not answer, so no request can be taken and no stream can go on."""

    code = "store_unavailable"


class ServerStopping(PoolError):
    """The web process stops; its streams go on at their engines and can be resumed for a while."""

    code = "server_stopping"


class PoolRemoved(PoolError):
    """The pool that served the request was switched off or removed by an operator."""

    code = "pool_removed"


class StreamSuperseded(PoolError):
    """Another reader resumed this stream; this one ends."""

    code = "stream_superseded"
    retryable = False


class StreamGone(PoolError):
    """The stream that a client wants to resume is not, or no longer, in the store."""

    code = "stream_not_found"
    retryable = False


class EngineRefused(PoolError):
    """The engine did not take the request; the message says why."""

    code = "engine_refused"


class RequestTooLarge(PoolError):
    """The prompt needs more KV cache than any instance has."""

    code = "context_length_exceeded"
    retryable = False


class StreamAbandoned(PoolError):
    """No web process read the stream for `orphan_grace_s`; the engine stopped working for it."""

    code = "stream_abandoned"


class RequestExpired(PoolError):
    """The request was older than `log_live_s` and was ended."""

    code = "request_expired"
    retryable = False


class MoveRefused(PoolError):
    """A request was not moved, and is where it was; `reason` is a slug (MoveReport.abort_code)."""

    code = "migration_refused"
    retryable = False

    def __init__(self, why: str, reason: str = "refused") -> None:
        super().__init__(why)
        self.reason = reason


class RequestNotRunning(PoolError):
    """No instance runs or queues the request: it has ended, or never was."""

    code = "request_not_found"
    retryable = False


class EngineFailed(PoolError):
    """An engine could not start or broke; the message says why."""

    code = "engine_failed"


class ConfigError(ValueError):
    """A setting has a value that cannot work. The message names the setting and what it may be."""
