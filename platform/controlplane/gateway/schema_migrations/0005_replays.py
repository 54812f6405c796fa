"""Adds how often a request went on elsewhere after its engine was lost."""

from django.db import migrations, models


class Migration(migrations.Migration):
    # On PostgreSQL a table that was changed in a transaction gets no index in the same one.
    atomic = False
    dependencies = [
        ("gateway", "0004_records"),
    ]

    operations = [
        migrations.AddField(
            model_name="requestrecord",
            name="replays",
            field=models.PositiveSmallIntegerField(
                default=0, help_text="How often it went on elsewhere after its engine was lost."
            ),
        ),
        migrations.AddField(
            model_name="requestrecord",
            name="replay_notes",
            field=models.JSONField(
                default=list, help_text="Each: from, to, at_token, gap_ms, at_ms, reason, replays."
            ),
        ),
        migrations.AddIndex(
            model_name="requestrecord",
            index=models.Index(
                condition=models.Q(("replays__gt", 0)),
                fields=["-arrived_at"],
                name="request_replayed",
            ),
        ),
    ]
