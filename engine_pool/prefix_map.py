"""Which instances have the beginning of a prompt in their prefix cache, as far as was heard.

A prompt's beginnings are known by hashes: of its first 64 tokens, 128 and so on (more coarsely
further on). Who computes a prompt has all its beginnings. What an instance has not used for as many
tokens as its KV cache holds is forgotten, least recently used first, as the engine does. This is a
guess, and an engine's answer corrects it: if it had less than was thought, what was not used since
then is gone there, too.

Hashes are keyed: nobody can make a prompt that passes for another one, or tell a prompt from what
is sent about. A cache salt makes other hashes of the same prompt, as it does in vLLM.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Final

from engine_pool.types import InstanceName

HASH_BYTES: Final = 8
"""Two of a million beginnings have the same hash once in 30 million maps; the price is a prompt
that waits for its prefill where it need not."""
STEPS_TOKENS: Final = ((64, 64), (56, 512), (512, 4096))
"""How many beginnings there are in steps of how many tokens: a long prompt is known by some hundred
hashes, each end to an eighth or better."""
_ENDS: Final = (0, *accumulate(step for count, step in STEPS_TOKENS for _ in range(count)))
"""Tokens of the beginning that so many hashes stand for."""
ENTRIES_MAX: Final = 200_000
"""Beginnings at instances, some 300 bytes each."""
HOLDERS_MAX: Final = 16
"""Instances that one beginning is known of: enough to find one that is free, and a choice looks at
no more."""
MISSES_MAX: Final = 3
"""An instance that had nothing of so many prompts that it should have had, and never anything, has
no prefix cache."""


def prefix_hashes(token_ids: Sequence[int], *, key: bytes, salt: str = "") -> tuple[int, ...]:
    """Returns the hashes of a prompt's beginnings, shortest first. `key`: at most 64 bytes."""
    blob = memoryview(array("I", token_ids).tobytes())
    size = len(blob) // max(1, len(token_ids))
    prefix = blake2b(digest_size=HASH_BYTES, key=key)
    salted = salt.encode()
    prefix.update(len(salted).to_bytes(4, "big") + salted)
    hashes = []
    for start, end in pairwise(_ENDS):
        if end > len(token_ids):
            break
        prefix.update(blob[start * size : end * size])
        hashes.append(int.from_bytes(prefix.copy().digest(), "big"))
    return tuple(hashes)


def tokens_of(hashes: int) -> int:
    """Returns how many tokens the beginning has that the last of so many hashes stands for."""
    return _ENDS[hashes]


@dataclass(frozen=True, slots=True)
class Claim:
    """What an instance was thought to have of a prompt when the prompt was sent there."""

    instance: InstanceName
    incarnation: str
    tokens: int
    used: tuple[int, ...]
    """Of each beginning of the prompt, shortest first: when it was last used there, 0 if never."""


@dataclass(slots=True)
class _Cache:
    """Of one instance."""

    incarnation: str
    capacity_tokens: int
    used: dict[int, int] = field(default_factory=dict)
    """hash -> when it was last used; least recently used first, and of one prompt the longest
    beginning first."""
    sizes: dict[int, int] = field(default_factory=dict)
    """hash -> tokens that it has more than the next shorter beginning."""
    tokens: int = 0
    hits: int = 0
    misses: int = 0

    @property
    def is_off(self) -> bool:
        return not self.hits and self.misses >= MISSES_MAX


class PrefixMap:
    """Of one web process. Time is a count of the prompts that were noted."""

    def __init__(self, entries_max: int = ENTRIES_MAX, holders_max: int = HOLDERS_MAX) -> None:
        self._entries_max = entries_max
        self._holders_max = holders_max
        self._caches: dict[InstanceName, _Cache] = {}
        self._holders: dict[int, dict[InstanceName, None]] = {}
        """hash -> instances, the one that used it last at the end."""
        self._now = 0

    def __len__(self) -> int:
        return sum(len(c.used) for c in self._caches.values())

    @property
    def instances(self) -> int:
        """How many are known."""
        return len(self._caches)

    def begin(self, instance: InstanceName, incarnation: str, capacity_tokens: int) -> None:
        """Takes an instance in; another incarnation than before has an empty cache."""
        known = self._caches.get(instance)
        if known is not None and known.incarnation == incarnation:
            known.capacity_tokens = capacity_tokens
            return
        self.forget(instance)
        self._caches[instance] = _Cache(incarnation, capacity_tokens)
        for name, cache in self._caches.items():
            self._trim(name, cache)

    def forget(self, instance: InstanceName) -> None:
        """Forgets an instance that is gone, or one that has lost its cache."""
        cache = self._caches.pop(instance, None)
        if cache is not None:
            for one in list(cache.used):
                self._drop(instance, cache, one)

    def note(self, instance: InstanceName, hashes: Sequence[int]) -> None:
        """Notes that an instance computes a prompt. Unknown instances are passed over."""
        cache = self._caches.get(instance)
        if cache is None or cache.is_off or not hashes:
            return
        self._now += 1
        for index in range(len(hashes) - 1, -1, -1):
            self._use(instance, cache, hashes[index], _ENDS[index + 1] - _ENDS[index])
        self._trim(instance, cache)

    def holders(self, hashes: Sequence[int], limit_tokens: int) -> dict[InstanceName, int]:
        """Returns the instances that have most of a prompt, with how many of its tokens.

        `limit_tokens`: no engine uses more of this prompt, since the last token is always computed.
        """
        found: dict[InstanceName, int] = {}
        for index in range(len(hashes) - 1, -1, -1):
            there = self._holders.get(hashes[index])
            if there is None:
                continue
            tokens = min(tokens_of(index + 1), limit_tokens)
            for instance in there:
                found.setdefault(instance, tokens)
            if len(found) >= self._holders_max:
                break
        return found

    def claim(self, instance: InstanceName, hashes: Sequence[int], tokens: int) -> Claim | None:
        """Remembers what an instance is thought to have, before a prompt is noted there; None when
        that is nothing."""
        cache = self._caches.get(instance)
        if cache is None or not tokens:
            return None
        used = tuple(cache.used.get(one, 0) for one in hashes)
        return Claim(instance, cache.incarnation, tokens, used)

    def correct(self, claim: Claim, found_tokens: int) -> None:
        """Takes what the engine really had of a prompt, which it has computed by now.

        What it had not had was evicted, and so was all that had not been used since then.
        """
        cache = self._caches.get(claim.instance)
        if cache is None or cache.incarnation != claim.incarnation:
            return
        if found_tokens >= claim.tokens:
            cache.hits += 1
            return
        if found_tokens:
            cache.hits += 1
        else:
            cache.misses += 1
        kept = bisect_right(_ENDS, found_tokens) - 1
        gone_since = max(claim.used[kept:], default=0)
        for one, used in list(cache.used.items()):
            if used > gone_since and not cache.is_off:
                break
            self._drop(claim.instance, cache, one)

    def withdraw(self, instance: InstanceName, hashes: Sequence[int]) -> None:
        """Takes a `note` back: the instance did not get the prompt."""
        cache = self._caches.get(instance)
        if cache is not None:
            for one in hashes:
                self._drop(instance, cache, one)

    def _use(self, instance: InstanceName, cache: _Cache, one: int, size: int) -> None:
        if cache.used.pop(one, None) is None:
            cache.sizes[one] = size
            cache.tokens += size
        cache.used[one] = self._now
        there = self._holders.setdefault(one, {})
        there.pop(instance, None)
        there[instance] = None
        if len(there) > self._holders_max:
            oldest = next(iter(there))
            self._drop(oldest, self._caches[oldest], one)

    def _trim(self, instance: InstanceName, cache: _Cache) -> None:
        entries_max = max(1, self._entries_max // len(self._caches))
        while cache.tokens > cache.capacity_tokens or len(cache.used) > entries_max:
            self._drop(instance, cache, next(iter(cache.used)))

    def _drop(self, instance: InstanceName, cache: _Cache, one: int) -> None:
        if cache.used.pop(one, None) is None:
            return
        cache.tokens -= cache.sizes.pop(one)
        there = self._holders[one]
        del there[instance]
        if not there:
            del self._holders[one]
