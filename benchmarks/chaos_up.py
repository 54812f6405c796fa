"""An installation as `make up` starts it, with more: a second web process, a second Ray node and a
second worker with a beat of its own, all under the same supervisor.

    python -m benchmarks.chaos_up

What is added stands in the environment: CHAOS_WEB_PORT, port of the second web process; empty:
none. CHAOS_NODES, Ray nodes besides the head; CHAOS_WORKERS, workers besides the first. Each added
part is restarted like any other, with the same growing wait. So whatever comes back after a fault
does so by the product's own means.
"""

import os
import sys
from dataclasses import replace

from ops import parts, up
from ops.parts import Part, Places
from tests.integration.installation import node_command

NODE_IP = "127.0.0.{}"
"""Each node has an address of its own, as machines have: by it drivers find their node."""


def all_parts(places: Places, ours: tuple[Part, ...]) -> tuple[Part, ...]:
    """Returns all parts; the pool waits for the nodes, so that its engines spread over them."""
    added = added_parts(places)
    nodes = tuple(part.name for part in added if part.name.startswith("ray-"))
    waiting = [replace(p, needs=(*p.needs, *nodes)) if p.name == "pool" else p for p in ours]
    return (*waiting, *added)


def added_parts(places: Places) -> tuple[Part, ...]:
    """Returns the parts that `make up` does not have."""
    added = []
    if port := os.environ.get("CHAOS_WEB_PORT", ""):
        added.append(parts.web_part("127.0.0.1", int(port), "web-2", restarts_with=("ray",)))
    for number in range(2, 2 + int(os.environ.get("CHAOS_NODES", "0"))):
        name = f"ray-{number}"
        added.append(
            Part(
                name,
                node_command(f"127.0.0.1:{places.ray_port}", NODE_IP.format(number), name),
                needs=("ray",),
                restarts_with=("ray",),
                ready_line="Ray runtime started",
            )
        )
    for number in range(2, 2 + int(os.environ.get("CHAOS_WORKERS", "0"))):
        worker, beat = f"worker-{number}", f"beat-{number}"
        needs = ("setup", "store", "ready")
        added.append(Part(worker, parts.worker_command(f"{worker}@%h"), needs=needs))
        added.append(Part(beat, parts.beat_command(places.settings, beat), needs=needs))
    return tuple(added)


def main() -> int:
    ours = up.list_parts
    up.list_parts = lambda places: all_parts(places, ours(places))
    return up.main()


if __name__ == "__main__":
    sys.exit(main())
