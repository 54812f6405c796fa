"""What every test gets: a settings environment of its own, away from the checkout's var/."""

import os
import tempfile

# Before Django reads its settings: no test may write into the folder of a real installation.
os.environ["FERRY_VAR_DIR"] = tempfile.mkdtemp(prefix="ferry-test-")
