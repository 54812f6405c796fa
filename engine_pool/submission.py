"""What a web process wants of the pool for one prompt, and what became of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from engine_pool.ports import EngineRequest
from engine_pool.types import InstanceName


@dataclass(slots=True)
class Submission:
    """Engine requests that belong together (the choices of one prompt), on their way to one
    instance."""

    requests: list[EngineRequest]
    unread: Callable[[], int]
    """Outputs that their consumer has not taken yet."""
    record: str
    """Id of the record from which another web process can resume them."""
    fields: Mapping[str, bytes]
    """What to write into the record; the instance of each request is added."""
    prompt_token_ids: Sequence[int] = ()
    """By which an instance is found that has the prompt's beginning in its prefix cache; empty
    where tokens alone do not make the cached blocks (images, LoRA), or none would be read."""
    cache_salt: str = ""
    """Only prompts with the same one share cached blocks."""

    @property
    def ids(self) -> list[str]:
        return [r.request_id for r in self.requests]

    @property
    def prompt_tokens(self) -> int:
        return max(r.prompt_tokens for r in self.requests)

    @property
    def known_tokens(self) -> int:
        """Of the longest: its prompt, and what was produced of its answer before it was lost."""
        return max(r.prompt_tokens + len(r.output_token_ids) for r in self.requests)

    def alone(self, request_id: str) -> "Submission":
        """Returns what it takes to send one of the requests again, without what is in the record
        already."""
        [request] = [r for r in self.requests if r.request_id == request_id]
        return replace(self, requests=[request], fields={})

    def demands(self, block_size_tokens: int, cached_tokens: int = 0) -> list[int]:
        """Returns the KV tokens that each request needs before it can run, in whole blocks.

        The choices share the prompt's full blocks, so the first one counts them for all.
        `cached_tokens`: of the prompt, those that are there already.
        """
        size = block_size_tokens
        # One token more than the prompt: the first output needs its place too.
        whole = -(-(self.known_tokens + 1) // size) * size
        own = whole - self.prompt_tokens // size * size
        first = max(own, whole - cached_tokens // size * size)
        return [first, *[own] * (len(self.requests) - 1)]


@dataclass(frozen=True, slots=True)
class Sent:
    """Where requests went, and why there."""

    instance: InstanceName
    reason: str
    waited_s: float = 0.0
    """In this web process, until an instance had room (late binding)."""
