"""Periodic tasks: doors to the services. The schedule stands in controlplane/celery.py.

Two beats or workers may ask for the same at once: the lease and its fence see to that (lease.py).
Every wait of a check is bounded (the store's answers, the database's statements), since a worker of
threads cannot be told to give up a task.
"""

import functools
import logging

import redis
from celery import shared_task
from django.conf import settings
from django.db import DatabaseError
from django.utils import timezone

from controlplane.scaling import services
from engine_pool.store import connect

logger = logging.getLogger(__name__)

TIME_LIMIT_S = 30
"""Where a worker keeps to limits; twice a lease."""


@shared_task(time_limit=TIME_LIMIT_S)
def check() -> None:
    """Decides how many instances each pool has."""
    try:
        services.checks_make(store=_store())
    except (redis.RedisError, OSError, DatabaseError) as error:
        # Nothing was decided; the next check finds everything as it is then.
        logger.warning("no pool was checked: %s: %s", type(error).__name__, error)


@shared_task(time_limit=TIME_LIMIT_S)
def wake() -> None:
    """Starts an instance of a pool at zero as soon as somebody waits for it."""
    try:
        services.demanded_wake(store=_store())
    except (redis.RedisError, OSError, DatabaseError) as error:
        logger.warning("no pool was woken: %s: %s", type(error).__name__, error)


@shared_task
def forget_old_decisions() -> None:
    """Keeps the table from growing for ever."""
    services.decisions_forget(now=timezone.now(), kept_days=settings.RECORDS_KEPT_DAYS)
    services.reports_tidy(store=_store())


@functools.cache
def _store() -> "redis.Redis[bytes]":
    return connect(settings.POOL.redis_url)
