"""Takes over the audit from the fleet's application, rows and all."""

import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = [("fleet", "0003_audit_leaves")]
    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name="AuditEntry",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True,
                                primary_key=True,
                                serialize=False,
                                verbose_name="ID",
                            ),
                        ),
                        ("at", models.DateTimeField(default=django.utils.timezone.now)),
                        ("who", models.CharField(max_length=150)),
                        (
                            "action",
                            models.CharField(
                                help_text="A slug: migrate_request, cancel_move.", max_length=64
                            ),
                        ),
                        (
                            "object",
                            models.CharField(help_text="What it was done to.", max_length=200),
                        ),
                        (
                            "reason",
                            models.TextField(
                                blank=True, help_text="Why, in the person's words and our numbers."
                            ),
                        ),
                        (
                            "result",
                            models.CharField(
                                choices=[
                                    ("done", "Done"),
                                    ("refused", "Refused"),
                                    ("failed", "Failed"),
                                ],
                                max_length=8,
                            ),
                        ),
                        (
                            "detail",
                            models.TextField(blank=True, help_text="Why it was refused or failed."),
                        ),
                        ("request_id", models.CharField(blank=True, max_length=128)),
                        ("migration_id", models.CharField(blank=True, max_length=64)),
                        ("before", models.JSONField(null=True)),
                        ("after", models.JSONField(null=True)),
                    ],
                    options={
                        "verbose_name_plural": "audit entries",
                        "ordering": ["-at"],
                        "indexes": [
                            models.Index(fields=["-at"], name="fleet_audit_at_fd2892_idx"),
                            models.Index(fields=["who", "-at"], name="fleet_audit_who_d9edef_idx"),
                            models.Index(
                                fields=["action", "-at"], name="fleet_audit_action_e108e7_idx"
                            ),
                        ],
                    },
                ),
            ],
        ),
    ]
