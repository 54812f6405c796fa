"""Adds what roll-ups and lists need; says when older requests ended."""

from datetime import timedelta
from typing import Any

from django.db import migrations, models

BATCH_ROWS = 1000


def fill_ended(apps: Any, schema_editor: Any) -> None:
    """Gives rows of before a time of their end: a roll-up counts them in its hour."""
    records = apps.get_model("gateway", "RequestRecord")
    rows = records.objects.filter(ended_at=None).only("arrived_at", "duration_ms")
    batch = []
    for row in rows.iterator(chunk_size=BATCH_ROWS):
        row.ended_at = row.arrived_at + timedelta(milliseconds=row.duration_ms)
        batch.append(row)
        if len(batch) == BATCH_ROWS:
            records.objects.bulk_update(batch, ["ended_at"])
            batch = []
    records.objects.bulk_update(batch, ["ended_at"])


MISSED = models.Q(("is_ttft_met", False), ("is_tpot_met", False), _connector="OR")


class Migration(migrations.Migration):
    # On PostgreSQL a table whose rows were changed in a transaction gets no index in the same one.
    atomic = False
    dependencies = [
        ("gateway", "0003_usage"),
    ]

    operations = [
        migrations.AddField(
            model_name="requestrecord",
            name="is_rolled",
            field=models.BooleanField(
                default=False,
                editable=False,
                help_text="It is in the hours' sums (usage/rollups.py).",
            ),
        ),
        migrations.AlterField(
            model_name="requestrecord",
            name="status",
            field=models.CharField(
                choices=[
                    ("completed", "Completed"),
                    ("cancelled", "Cancelled: the client left"),
                    ("detached", "Detached: the client left, it went on to its end"),
                    ("failed", "Failed"),
                ],
                max_length=16,
            ),
        ),
        migrations.RunPython(fill_ended, migrations.RunPython.noop),
        migrations.AddIndex(
            model_name="requestrecord",
            index=models.Index(fields=["status", "-arrived_at"], name="request_status"),
        ),
        migrations.AddIndex(
            model_name="requestrecord",
            index=models.Index(
                fields=["tenant", "status", "-arrived_at"], name="request_tenant_status"
            ),
        ),
        migrations.AddIndex(
            model_name="requestrecord",
            index=models.Index(fields=["key_id", "-arrived_at"], name="request_key"),
        ),
        migrations.AddIndex(
            model_name="requestrecord",
            index=models.Index(fields=["model", "-arrived_at"], name="request_model"),
        ),
        migrations.AddIndex(
            model_name="requestrecord",
            index=models.Index(fields=["instance", "-arrived_at"], name="request_instance"),
        ),
        migrations.AddIndex(
            model_name="requestrecord",
            index=models.Index(fields=["client_request_id"], name="request_client_id"),
        ),
        migrations.AddIndex(
            model_name="requestrecord",
            index=models.Index(
                condition=models.Q(("is_rolled", False)),
                fields=["ended_at"],
                name="request_unrolled",
            ),
        ),
        migrations.AddIndex(
            model_name="requestrecord",
            index=models.Index(
                condition=models.Q(("is_rolled", False)),
                fields=["tenant", "ended_at"],
                name="request_tenant_unrolled",
            ),
        ),
        migrations.AddIndex(
            model_name="requestrecord",
            index=models.Index(condition=MISSED, fields=["-arrived_at"], name="request_missed"),
        ),
        migrations.AddIndex(
            model_name="requestrecord",
            index=models.Index(
                condition=MISSED,
                fields=["tenant", "priority_class", "-arrived_at"],
                name="request_tenant_missed",
            ),
        ),
    ]
