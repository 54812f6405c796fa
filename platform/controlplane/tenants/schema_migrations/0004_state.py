from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("tenants", "0003_carry_over")]
    operations = [migrations.RemoveField("tenant", "is_active")]
