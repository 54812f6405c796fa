"""What two processes must know and agree on to open a channel between them."""

import json
from dataclasses import asdict, dataclass
from typing import Literal

import torch

from migration.ports import TransferFailed

Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True)
class ChannelTerms:
    """What one process wants of its channels."""

    host: str
    """Address of this host that peers reach; no name is looked up for an address."""
    backend: Backend
    timeout_s: float
    chunk_bytes: int
    device: torch.device
    """Where the tensors are."""


@dataclass(frozen=True, slots=True)
class ChannelOffer:
    """What the joining process must know."""

    host: str
    port: int
    name: str
    """A random name of the two's own keys in the store."""
    backend: Backend
    chunk_bytes: int
    """Both ends must cut alike."""

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "ChannelOffer":
        """Reads what `as_text` wrote.

        Raises:
            TransferFailed: it is something else.
        """
        try:
            offer = cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise TransferFailed(f"not an offer of a channel: {text[:200]!r}") from error
        if offer.backend not in ("gloo", "nccl") or offer.chunk_bytes < 1:
            raise TransferFailed(f"not an offer of a channel: {text[:200]!r}")
        return offer
