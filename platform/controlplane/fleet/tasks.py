"""Periodic tasks: doors to the services. The schedule stands in controlplane/celery.py."""

import contextlib
import functools

import redis
from celery import shared_task
from celery.signals import heartbeat_sent
from django.conf import settings
from django.core.management import call_command
from django.utils import timezone

from controlplane.fleet import move_rows, publishing, services, wish_tidy
from engine_pool.store import connect


@shared_task
def copy_events() -> None:
    """Brings new fleet events into the database."""
    for keys in publishing.pool_keys().values():
        services.events_copy(store=_store(), keys=keys)


@shared_task
def copy_moves() -> None:
    """Brings moves that have ended into the database, and ends those that nobody reports."""
    pools = publishing.pool_keys()
    for pool, keys in pools.items():
        move_rows.migrations_copy(store=_store(), pool=pool, keys=keys)
    move_rows.migrations_give_up(store=_store(), now=timezone.now(), keys=list(pools.values()))


@shared_task
def publish_pools() -> None:
    """Tells everybody again which pools are wanted: the store may have lost its memory."""
    publishing.pools_publish(store=_store())


@shared_task
def tidy_wishes() -> None:
    """Removes wishes that are fulfilled, and those for instances that are not there any more."""
    wish_tidy.wishes_tidy(now=timezone.now())


@shared_task
def forget_old_records() -> None:
    """Keeps the tables from growing for ever."""
    services.records_forget(older_than_days=settings.RECORDS_KEPT_DAYS)


@shared_task
def forget_old_sessions() -> None:
    """Deletes the sessions of people that have expired: Django leaves that to us."""
    call_command("clearsessions")


@heartbeat_sent.connect
def say_alive(**_: object) -> None:
    """Tells that this worker lives, also when beat gives it nothing to do. Every two seconds."""
    with contextlib.suppress(redis.RedisError):
        services.worker_alive_write(store=_store())


@shared_task
def beat() -> None:
    """Shows the pages that worker and beat run."""
    services.heartbeat_write(store=_store())


@functools.cache
def _store() -> "redis.Redis[bytes]":
    return connect(settings.POOL.redis_url)
