"""Says in the new fields what the old ones said, and makes the classes' rows."""

from django.db import migrations


def carry_over(apps, schema_editor):
    tenants = apps.get_model("tenants", "Tenant").objects
    for tenant in tenants.all():
        tenant.default_class = tenant.highest_class
        tenant.state = "active" if tenant.is_active else "blocked"
        tenant.save()
    classes = apps.get_model("tenants", "ClassSettings").objects
    for name in ("high", "normal", "low"):
        classes.get_or_create(name=name)


class Migration(migrations.Migration):
    dependencies = [("tenants", "0002_access")]
    operations = [migrations.RunPython(carry_over, migrations.RunPython.noop)]
