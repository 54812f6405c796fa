import django.core.validators
import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

import controlplane.tenants.models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RenameField("tenant", "priority_class", "highest_class"),
        migrations.CreateModel(
            name="ClassSettings",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("version", models.PositiveIntegerField(default=1, editable=False)),
                (
                    "created_at",
                    models.DateTimeField(default=django.utils.timezone.now, editable=False),
                ),
                (
                    "updated_at",
                    models.DateTimeField(default=django.utils.timezone.now, editable=False),
                ),
                (
                    "name",
                    models.CharField(
                        choices=[("high", "high"), ("normal", "normal"), ("low", "low")],
                        max_length=8,
                        unique=True,
                    ),
                ),
                (
                    "headroom_tokens",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="KV cache kept free on an instance that serves the class, in tokens.",
                        null=True,
                    ),
                ),
                (
                    "headroom_share",
                    models.FloatField(
                        blank=True,
                        help_text="The same as a share of the instance's KV cache; one of both, or neither.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0.0),
                            django.core.validators.MaxValueValidator(0.95),
                        ],
                    ),
                ),
                (
                    "ageing_s",
                    models.FloatField(
                        blank=True,
                        help_text="A request that waits so long counts as one class higher; 0: never; empty: the pool's setting.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(0.0)],
                    ),
                ),
                (
                    "is_preemptible",
                    models.BooleanField(
                        default=True,
                        help_text="Its running requests may make room for a higher class.",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "class settings",
            },
        ),
        migrations.AddField(
            model_name="apikey",
            name="allowed_models",
            field=models.JSONField(
                blank=True,
                default=list,
                help_text="Empty: all that the tenant may use.",
                validators=[controlplane.tenants.models._check_names],
            ),
        ),
        migrations.AddField(
            model_name="apikey",
            name="allowed_networks",
            field=models.JSONField(
                blank=True,
                default=list,
                help_text="IP addresses and networks that it may come from; empty: any.",
                validators=[controlplane.tenants.models._check_networks],
            ),
        ),
        migrations.AddField(
            model_name="apikey",
            name="created_by",
            field=models.CharField(blank=True, editable=False, max_length=150),
        ),
        migrations.AddField(
            model_name="apikey",
            name="old_last4",
            field=models.CharField(blank=True, editable=False, max_length=4),
        ),
        migrations.AddField(
            model_name="apikey",
            name="old_secret_digest",
            field=models.CharField(blank=True, editable=False, max_length=64),
        ),
        migrations.AddField(
            model_name="apikey",
            name="old_until",
            field=models.DateTimeField(
                blank=True,
                editable=False,
                help_text="How long the old secret still works.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="apikey",
            name="scopes",
            field=models.JSONField(
                default=controlplane.tenants.models._inference,
                validators=[controlplane.tenants.models._check_scopes],
            ),
        ),
        migrations.AddField(
            model_name="apikey",
            name="updated_at",
            field=models.DateTimeField(default=django.utils.timezone.now, editable=False),
        ),
        migrations.AddField(
            model_name="apikey",
            name="version",
            field=models.PositiveIntegerField(default=1, editable=False),
        ),
        migrations.AddField(
            model_name="tenant",
            name="allowed_models",
            field=models.JSONField(
                blank=True,
                default=list,
                help_text="Empty: all models.",
                validators=[controlplane.tenants.models._check_names],
            ),
        ),
        migrations.AddField(
            model_name="tenant",
            name="concurrency",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="Requests at the same time; empty: no limit.",
                null=True,
                validators=[django.core.validators.MinValueValidator(1)],
            ),
        ),
        migrations.AddField(
            model_name="tenant",
            name="default_class",
            field=models.CharField(
                choices=[("high", "high"), ("normal", "normal"), ("low", "low")],
                default="normal",
                help_text="Of requests that do not say.",
                max_length=8,
            ),
        ),
        migrations.AddField(
            model_name="tenant",
            name="monthly_budget",
            field=models.DecimalField(
                blank=True,
                decimal_places=4,
                help_text="Cost in a calendar month (UTC); empty: no limit.",
                max_digits=14,
                null=True,
                validators=[django.core.validators.MinValueValidator(0)],
            ),
        ),
        migrations.AddField(
            model_name="tenant",
            name="requests_per_minute",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="Empty: no limit.",
                null=True,
                validators=[django.core.validators.MinValueValidator(1)],
            ),
        ),
        migrations.AddField(
            model_name="tenant",
            name="state",
            field=models.CharField(
                choices=[
                    ("active", "Active"),
                    ("blocked", "Blocked: its requests are refused, its pages work"),
                ],
                default="active",
                max_length=8,
            ),
        ),
        migrations.AddField(
            model_name="tenant",
            name="tokens_per_minute",
            field=models.PositiveBigIntegerField(
                blank=True,
                help_text="Prompt and output tokens together; empty: no limit.",
                null=True,
                validators=[django.core.validators.MinValueValidator(1)],
            ),
        ),
        migrations.AddField(
            model_name="tenant",
            name="updated_at",
            field=models.DateTimeField(default=django.utils.timezone.now, editable=False),
        ),
        migrations.AddField(
            model_name="tenant",
            name="version",
            field=models.PositiveIntegerField(default=1, editable=False),
        ),
        migrations.AddField(
            model_name="tenant",
            name="weight",
            field=models.FloatField(
                default=1.0,
                help_text="Its share within a class beside other tenants: 2 gets twice the tokens of 1.",
                validators=[
                    django.core.validators.MinValueValidator(0.001),
                    django.core.validators.MaxValueValidator(1000),
                ],
            ),
        ),
        migrations.AlterField(
            model_name="tenant",
            name="highest_class",
            field=models.CharField(
                choices=[("high", "high"), ("normal", "normal"), ("low", "low")],
                default="normal",
                help_text="Requests that ask for a higher one get this one.",
                max_length=8,
            ),
        ),
        migrations.CreateModel(
            name="Membership",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("version", models.PositiveIntegerField(default=1, editable=False)),
                (
                    "created_at",
                    models.DateTimeField(default=django.utils.timezone.now, editable=False),
                ),
                (
                    "updated_at",
                    models.DateTimeField(default=django.utils.timezone.now, editable=False),
                ),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("viewer", "viewer"),
                            ("operator", "operator"),
                            ("tenant_admin", "tenant_admin"),
                            ("owner", "owner"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="members",
                        to="tenants.tenant",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["tenant", "user"],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "user"), name="one_role_a_member")
                ],
            },
        ),
        migrations.CreateModel(
            name="Slo",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("version", models.PositiveIntegerField(default=1, editable=False)),
                (
                    "created_at",
                    models.DateTimeField(default=django.utils.timezone.now, editable=False),
                ),
                (
                    "updated_at",
                    models.DateTimeField(default=django.utils.timezone.now, editable=False),
                ),
                (
                    "priority_class",
                    models.CharField(
                        choices=[("high", "high"), ("normal", "normal"), ("low", "low")],
                        max_length=8,
                    ),
                ),
                (
                    "ttft_ms",
                    models.FloatField(
                        blank=True,
                        help_text="Longest time to the first token.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1.0)],
                    ),
                ),
                (
                    "tpot_ms",
                    models.FloatField(
                        blank=True,
                        help_text="Longest mean time per token after the first.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(0.1)],
                    ),
                ),
                (
                    "objective",
                    models.FloatField(
                        default=0.99,
                        help_text="Share of requests that meet all targets.",
                        validators=[
                            django.core.validators.MinValueValidator(0.5),
                            django.core.validators.MaxValueValidator(0.9999),
                        ],
                    ),
                ),
                (
                    "window_days",
                    models.PositiveSmallIntegerField(
                        default=28,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(90),
                        ],
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        blank=True,
                        help_text="Empty: all tenants without one of their own.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="slos",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "ordering": ["tenant", "priority_class"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "priority_class"),
                        name="one_slo_a_class",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
    ]
