"""Prepares what the web process needs: database tables, static files, the first login and key.

    python -m ops.setup --url URL

One process for the three commands, because each would load Django again.
"""

import argparse
import os
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.setup", description=__doc__)
    parser.add_argument("--url", required=True)
    given = parser.parse_args()

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", interactive=False, verbosity=0)
    call_command("bootstrap", url=given.url)
    call_command("collectstatic", interactive=False, verbosity=0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
