"""The environment in which the tests' own process reads Django's settings.

A pytest plugin, and the first one (`-p` in pyproject.toml): pytest-django reads the settings before
pytest reads a conftest.py, so that what is set there comes too late.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

# No test may write into the folder of a real installation.
VAR_DIR = Path(tempfile.mkdtemp(prefix="ferry-test-"))
atexit.register(shutil.rmtree, VAR_DIR, ignore_errors=True)
os.environ["FERRY_VAR_DIR"] = str(VAR_DIR)

# What the person's shell says about a running installation is none of the tests' business.
for name in ("REDIS_URL", "RAY_ADDRESS", "DATABASE_URL", "DJANGO_SETTINGS_MODULE"):
    os.environ.pop(name, None)
# A server on which the tests may make databases of their own (ops/test.py starts one).
if "FERRY_TEST_DATABASE_URL" in os.environ:
    os.environ["DATABASE_URL"] = os.environ["FERRY_TEST_DATABASE_URL"]
