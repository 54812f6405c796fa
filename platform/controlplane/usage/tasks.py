"""Periodic tasks: doors to the services. The schedule stands in controlplane/celery.py."""

import functools
import time

import redis
from celery import shared_task
from django.conf import settings
from django.utils import timezone

from controlplane.usage import retention, rollups, unbilled
from engine_pool.store import connect
from engine_pool.token_log import LogTimes


@shared_task
def roll_up() -> None:
    """Brings new requests into the sums."""
    rollups.usage_roll()


@shared_task
def find_unbilled() -> None:
    """Records requests whose web process died before their end."""
    pool = settings.POOL
    times = LogTimes(live_s=pool.log_live_s, ended_s=pool.log_ended_s)
    unbilled.unbilled_write(store=_store(), times=times, now_unix_s=time.time())


@shared_task
def forget_old_sums() -> None:
    """Keeps the sums from growing for ever."""
    retention.sums_forget(now=timezone.now(), kept_days=settings.USAGE_KEPT_DAYS)


@functools.cache
def _store() -> "redis.Redis[bytes]":
    return connect(settings.POOL.redis_url)
