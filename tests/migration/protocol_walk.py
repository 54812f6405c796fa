"""A walk through every world that a move can come to, breadth first."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from migration.protocol import ProtocolError
from tests.migration.protocol_model import next_steps
from tests.migration.protocol_world import Kind, Violation, World, simplify


@dataclass
class Explored:
    """Every world that was reached, in the order of the shortest way there."""

    worlds: list[World] = field(default_factory=list)
    came_from: list[tuple[int, str]] = field(default_factory=list)
    """Of each world: the one before it on a shortest way, and what happened."""
    leads_to: list[list[tuple[Kind, int]]] = field(default_factory=list)

    def trace(self, index: int) -> str:
        """Returns what happened on the way to a world, one step a line."""
        labels = []
        while index:
            index, label = self.came_from[index]
            labels.append(label)
        return "\n".join(reversed(labels))


def explore(kinds: frozenset[Kind], check: Callable[[World, bool], None]) -> Explored:
    """Visits every world reachable by steps of these kinds, breadth first.

    `check(world, is_quiet)` is called for each of them; quiet: nothing happens by itself any more.
    Raises: Violation with the shortest trace, for what `check` or a command objects to and for a
    ProtocolError.
    """
    found = Explored([World()], [(0, "")], [])
    index_of = {found.worlds[0]: 0}
    queue = deque([0])
    while queue:
        at = queue.popleft()
        try:
            steps = [s for s in next_steps(found.worlds[at]) if s[1] in kinds]
            check(found.worlds[at], all(kind is not Kind.INSIDE for _, kind, _ in steps))
        except (Violation, ProtocolError) as error:
            trace = f"{found.trace(at)}\n{found.worlds[at]}"
            raise Violation(f"{error}, after:\n{trace}") from error
        edges: list[tuple[Kind, int]] = []
        for label, kind, after in steps:
            world = simplify(after)
            index = index_of.setdefault(world, len(found.worlds))
            if index == len(found.worlds):
                found.worlds.append(world)
                found.came_from.append((at, label))
                queue.append(index)
            edges.append((kind, index))
        found.leads_to.append(edges)
    return found


def worlds_without_way(found: Explored, kinds: frozenset[Kind], ends: frozenset[int]) -> list[int]:
    """Returns the worlds from which no steps of these kinds lead to an end, the nearest first."""
    leads_from: list[list[int]] = [[] for _ in found.worlds]
    for index, edges in enumerate(found.leads_to):
        for kind, after in edges:
            if kind in kinds:
                leads_from[after].append(index)
    reached = set(ends)
    todo = list(ends)
    while todo:
        for before in leads_from[todo.pop()]:
            if before not in reached:
                reached.add(before)
                todo.append(before)
    return [i for i in range(len(found.worlds)) if i not in reached]
