"""The worker: `celery -A controlplane.celery worker`, and beside it one `beat`."""

import os
from typing import Final

from celery import Celery
from celery.schedules import crontab
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("ferry")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

COPY_EVENTS_EVERY_S: Final = 3.0
"""The store keeps 1000 events, so even a burst is copied in time."""
COPY_MOVES_EVERY_S: Final = 2.0
"""A page that lists ended moves is this much behind; a live one is not."""
PUBLISH_POOLS_EVERY_S: Final = 4.0
"""After the store has lost its memory, everybody goes on with the pools they know meanwhile."""
TIDY_WISHES_EVERY_S: Final = 5.0
"""A restart that is done is shown as wanted no longer than this."""
BEAT_EVERY_S: Final = 5.0
FORGET_EVERY_S: Final = 3600.0
FORGET_SESSIONS_AT: Final = crontab(hour="3", minute="17")
"""Once a day, UTC; by the clock, since a period would begin anew with each start of beat."""
SIMULATE_EVERY_S: Final = 1.0
"""A what-if run that waits begins so soon after the one before it."""
TIDY_RUNS_EVERY_S: Final = 10.0
ROLL_UP_EVERY_S: Final = 5.0
"""What is not in the sums is added by whoever reads them; few rows, and it stays quick."""
FIND_UNBILLED_EVERY_S: Final = 15.0
"""Often within the time that the store keeps ended streams."""
WAKE_EVERY_S: Final = 1.0
"""A request that waits for a pool at zero waits so long for somebody to see it; a start takes
longer."""

# A task that could not run in time is superseded by the next one: it must not pile up.
app.conf.beat_schedule = {
    "beat": {
        "task": "controlplane.fleet.tasks.beat",
        "schedule": BEAT_EVERY_S,
        "options": {"expires": BEAT_EVERY_S},
    },
    "publish pools": {
        "task": "controlplane.fleet.tasks.publish_pools",
        "schedule": PUBLISH_POOLS_EVERY_S,
        "options": {"expires": PUBLISH_POOLS_EVERY_S},
    },
    "tidy wishes": {
        "task": "controlplane.fleet.tasks.tidy_wishes",
        "schedule": TIDY_WISHES_EVERY_S,
        "options": {"expires": TIDY_WISHES_EVERY_S},
    },
    "copy fleet events": {
        "task": "controlplane.fleet.tasks.copy_events",
        "schedule": COPY_EVENTS_EVERY_S,
        "options": {"expires": COPY_EVENTS_EVERY_S},
    },
    "copy moves": {
        "task": "controlplane.fleet.tasks.copy_moves",
        "schedule": COPY_MOVES_EVERY_S,
        "options": {"expires": COPY_MOVES_EVERY_S},
    },
    "forget old records": {
        "task": "controlplane.fleet.tasks.forget_old_records",
        "schedule": FORGET_EVERY_S,
        "options": {"expires": FORGET_EVERY_S},
    },
    "forget old sessions": {
        "task": "controlplane.fleet.tasks.forget_old_sessions",
        "schedule": FORGET_SESSIONS_AT,
        "options": {"expires": FORGET_EVERY_S},
    },
    "roll up usage": {
        "task": "controlplane.usage.tasks.roll_up",
        "schedule": ROLL_UP_EVERY_S,
        "options": {"expires": ROLL_UP_EVERY_S},
    },
    "find unbilled requests": {
        "task": "controlplane.usage.tasks.find_unbilled",
        "schedule": FIND_UNBILLED_EVERY_S,
        "options": {"expires": FIND_UNBILLED_EVERY_S},
    },
    "forget old sums": {
        "task": "controlplane.usage.tasks.forget_old_sums",
        "schedule": FORGET_EVERY_S,
        "options": {"expires": FORGET_EVERY_S},
    },
    "check scaling": {
        "task": "controlplane.scaling.tasks.check",
        "schedule": settings.SCALING_CHECK_S,
        "options": {"expires": settings.SCALING_CHECK_S},
    },
    "wake pools at zero": {
        "task": "controlplane.scaling.tasks.wake",
        "schedule": WAKE_EVERY_S,
        "options": {"expires": WAKE_EVERY_S},
    },
    "forget old decisions": {
        "task": "controlplane.scaling.tasks.forget_old_decisions",
        "schedule": FORGET_EVERY_S,
        "options": {"expires": FORGET_EVERY_S},
    },
    "simulate": {
        "task": "controlplane.whatif.tasks.run_one",
        "schedule": SIMULATE_EVERY_S,
        "options": {"expires": SIMULATE_EVERY_S},
    },
    "tidy what-if runs": {
        "task": "controlplane.whatif.tasks.tidy_runs",
        "schedule": TIDY_RUNS_EVERY_S,
        "options": {"expires": TIDY_RUNS_EVERY_S},
    },
}
