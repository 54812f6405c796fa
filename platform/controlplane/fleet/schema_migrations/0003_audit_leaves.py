"""The audit has an application of its own; its rows stay."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("fleet", "0002_moves")]
    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.AlterModelTable("auditentry", "audit_auditentry")],
            state_operations=[migrations.DeleteModel("AuditEntry")],
        ),
    ]
