"""Periodic tasks: doors to the services. The schedule stands in controlplane/celery.py."""

import functools

import redis
from celery import shared_task
from django.conf import settings

from controlplane.fleet import services
from engine_pool.store import connect


@shared_task
def copy_events() -> None:
    """Brings new fleet events into the database."""
    services.events_copy(store=_store())


@shared_task
def forget_old_records() -> None:
    """Keeps the tables from growing for ever."""
    services.records_forget(older_than_days=settings.RECORDS_KEPT_DAYS)


@shared_task
def beat() -> None:
    """Shows the pages that worker and beat run."""
    services.heartbeat_write(store=_store())


@functools.cache
def _store() -> "redis.Redis[bytes]":
    return connect(settings.POOL.redis_url)
