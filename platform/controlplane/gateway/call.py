"""One API request on its way through this process: what it is, where it runs, what came of it."""

import asyncio
import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from controlplane.tenants.selectors import NO_TARGET, Target
from engine_pool.stream import Visit
from engine_pool.types import PriorityClass


@dataclass(frozen=True, slots=True)
class Migration:
    """A move or a replay of one of a call's engine requests, as this process saw it while it read
    the tokens."""

    choice: int
    """Index of the choice in the answer."""
    origin: str
    destination: str
    at_token: int
    """Output tokens of the choice before the first one from the destination."""
    gap_ms: float | None
    """Between the last tokens from the origin and the first ones from the destination; None when
    there were none from the origin (it moved in the queue), or when they are read from the log."""
    lost: tuple[str, ...] = ()
    """Not a move: why each engine that had the request before was lost, in words; it was sent again
    after each."""

    @property
    def kind(self) -> str:
        """The type of the event that tells of it."""
        return "request.replayed" if self.lost else "request.migrated"

    @property
    def facts(self) -> dict[str, str | int | float | None]:
        """What events say of it."""
        facts: dict[str, str | int | float | None] = {
            "from": self.origin,
            "to": self.destination,
            "at_token": self.at_token,
            "gap_ms": None if self.gap_ms is None else round(self.gap_ms, 3),
        }
        return facts | {"reason": self.lost[-1], "replays": len(self.lost)} if self.lost else facts


@dataclass(slots=True, eq=False)
class Call:
    """Made by the door, filled by the front end, read when the request's record is written."""

    request_id: str
    """The id that the client sees, e.g. chatcmpl-...; unique, made by us."""
    endpoint: str
    """chat or completions."""
    tenant_id: int
    tenant: str
    priority_class: PriorityClass
    weight: float = 1.0
    """The tenant's share within its class, for fair queueing in the engines."""
    key_id: int = 0
    """Row id of the key; 0: the playground."""
    client_request_id: str = ""
    """X-Request-Id of the call."""
    pool: str = "default"
    model: str = ""
    """As clients call it."""
    target: Target = NO_TARGET
    """What the request is promised: by the tenant's SLO, or by its own headers."""
    queue_ms: float | None = None
    """From the arrival to the engine's first step with it, as the engine says."""
    fields: dict[str, bytes] = field(default_factory=dict)
    """What another web process needs to resume it (resume.py)."""
    needs_parser: bool = True
    """Its answer may hold tool calls or reasoning, and not only text."""
    places: dict[str, tuple[str, str]] | None = None
    """Of a resumed request: engine request id -> (instance, incarnation). None: a new request."""
    arrived_s: float = field(default_factory=time.monotonic)
    arrived_unix_s: float = field(default_factory=time.time)
    accepted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once an engine has taken the request: from now on the answer's status is 200."""
    engine_ids: list[str] = field(default_factory=list)
    """Of all choices of all prompts, as engines know them."""
    parent_ids: list[str] = field(default_factory=list)
    """Of the prompts."""
    instance: str = ""
    """The one that took the request."""
    instances: list[str] = field(default_factory=list)
    """All that were visited, in order; one that was left and visited again stands there twice."""
    migrations: int = 0
    """Of all choices together, as far as their tokens were read here."""
    replays: int = 0
    """How often its engine requests were sent again after their engine was lost, all together."""
    replay_notes: list[dict[str, str | int | float | None]] = field(default_factory=list)
    """Each in words and numbers: Migration.facts, with `at_ms` since the arrival when this process
    saw it."""
    prompts: dict[str, bytes] = field(default_factory=dict)
    """Of a resumed request: id of each prompt -> digest of its tokens when it was first sent."""
    untold: list[Migration] = field(default_factory=list)
    """Moves that the answer has come to, but has not told yet."""
    dispatch_reason: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    failure: Exception | None = None
    """What ended it without a result."""
    choice_gaps_ms: dict[int, float] = field(default_factory=dict)
    """Of each choice that moved: the sum of Migration.gap_ms, as far as they were seen here."""
    engine_ttft_ms: float | None = None
    """From the arrival to the first token as the engine says; of a replay the only one that is
    known."""
    choice_tokens: dict[str, int] = field(default_factory=dict)
    """Output tokens of each engine request."""
    is_cancelled: bool = False
    """Somebody had its engine stop it (requests_cancel.py)."""

    @property
    def is_resumed(self) -> bool:
        return self.places is not None

    @property
    def is_accepted(self) -> bool:
        return self.accepted.is_set()

    @property
    def migration_ms(self) -> float:
        """The reader's waits for moves and replays: the whole gaps between the tokens before and
        after each, a normal step's time included; of several choices the one that waited
        longest."""
        return max(self.choice_gaps_ms.values(), default=0.0)

    def note_times(self, queue_ms: float | None, prefill_ms: float | None) -> None:
        """Takes what the engine says in the first frame of the first choice."""
        if self.queue_ms is None and queue_ms is not None:
            self.queue_ms = queue_ms
            self.engine_ttft_ms = queue_ms + (prefill_ms or 0.0)

    def note_sent(self, instance: str) -> None:
        """Notes which instance took the request."""
        self.instance = instance
        self.instances = [instance] if instance else []

    def note_migration(self, migration: Migration) -> None:
        """Counts a move or a replay."""
        if migration.lost:
            self.replays += len(migration.lost)
            self.replay_notes.append({**migration.facts, "at_ms": self._seen_ms(migration)})
        else:
            self.migrations += 1
        if migration.gap_ms is not None:
            waited_ms = self.choice_gaps_ms.get(migration.choice, 0.0) + migration.gap_ms
            self.choice_gaps_ms[migration.choice] = waited_ms
        if migration.lost or self.instances[-1:] != [migration.destination]:
            self.instances.append(migration.destination)

    def _seen_ms(self, migration: Migration) -> float | None:
        if migration.gap_ms is None:
            return None
        return round((time.monotonic() - self.arrived_s) * 1000, 3)

    def take_untold(self) -> list[Migration]:
        """Returns the moves that are to be told before the next chunk of the answer."""
        taken, self.untold = self.untold, []
        return taken

    def note_tokens(self, engine_id: str, count: int, now_s: float) -> float | None:
        """Counts tokens. Returns the seconds since the ones before, None for the first ones."""
        self.output_tokens += count
        self.choice_tokens[engine_id] = self.choice_tokens.get(engine_id, 0) + count
        before_s, self.last_token_s = self.last_token_s, now_s
        if self.first_token_s is None:
            self.first_token_s = now_s
            return None
        return now_s - before_s if before_s is not None else None


def migration_of(call: Call, engine_id: str, visit: Visit) -> Migration:
    """Returns what the call's answer is told of a visit of one of its engine requests."""
    choice = call.engine_ids.index(engine_id)
    lost = tuple(one.why for one in visit.lost)
    return Migration(choice, visit.origin, visit.instance, visit.at_token, visit.gap_ms, lost)


current_call: ContextVar[Call] = ContextVar("current_call")
"""Set by the door before it calls vLLM's serving classes, which know nothing of ours."""
