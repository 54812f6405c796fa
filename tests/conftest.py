"""What every test gets: a settings environment of its own, away from the checkout's var/."""

import atexit
import os
import shutil
import tempfile

# Before Django reads its settings: no test may write into the folder of a real installation.
VAR_DIR = tempfile.mkdtemp(prefix="ferry-test-")
atexit.register(shutil.rmtree, VAR_DIR, ignore_errors=True)
os.environ["FERRY_VAR_DIR"] = VAR_DIR

# What the person's shell says about a running installation is none of the tests' business.
for name in ("REDIS_URL", "RAY_ADDRESS"):
    os.environ.pop(name, None)
