"""`ray start` without two of Ray's processes that Ferry has no use for.

    python -m ops.ray_head start --head --block ...

Ray has no option against them, and each costs seconds of a start: the client server (an open port
for remote drivers) and the dashboard's server (with the dashboard off it would only count usage).
Should the names below vanish from Ray, the processes are back and nothing else changes.
"""

import sys
from typing import Any

from ray._private.node import Node
from ray.scripts import scripts


def main() -> None:
    scripts.get_ray_client_dependency_error = lambda: "not wanted"
    Node.start_api_server = _start_nothing
    scripts.main()


def _start_nothing(node: Node, **_: Any) -> None:
    """Takes the place of the dashboard server's start."""


if __name__ == "__main__":
    sys.exit(main())
