"""Periodic tasks: doors to the services. The schedule stands in controlplane/celery.py."""

import functools

import redis
from celery import shared_task
from django.conf import settings
from django.utils import timezone

from controlplane.fleet import move_rows, services
from engine_pool.store import connect


@shared_task
def copy_events() -> None:
    """Brings new fleet events into the database."""
    services.events_copy(store=_store())


@shared_task
def copy_moves() -> None:
    """Brings moves that have ended into the database, and ends those that nobody reports."""
    move_rows.migrations_copy(store=_store(), pool=settings.POOL.pool)
    move_rows.migrations_give_up(store=_store(), now=timezone.now())


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
