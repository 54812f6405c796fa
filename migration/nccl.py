"""Moves tensors between two GPUs: a process group of two over NCCL.

NOT RUN YET: written from torch's and NCCL's documentation on a machine without a GPU. Two engines
on one GPU cannot have it (NCCL refuses the same device twice): they take gloo and pinned buffers.

A kernel of NCCL occupies part of the GPU until its counterpart arrives, so `Channel` posts a
receive only when the peer has said that its send is issued, and a wait that ends without success
aborts the communicator, which ends the kernel.
"""

import time
from datetime import timedelta

import torch
from torch import distributed
from torch._C._distributed_c10d import PrefixStore

from migration.ports import TransferFailed

POLL_S = 0.00005
"""Between looks at a stream's event: short against a chunk, and CUDA has no wait with a timeout."""

WATCHDOG_TIMEOUT = timedelta(days=1)
"""Never: torch's watchdog ends the whole process, engine and all, when an operation times out.
`finish` keeps the time instead and aborts the pair only."""


class NcclPair:
    """One end. One thread uses it; any thread aborts."""

    def __init__(
        self, store: PrefixStore, rank: int, device: torch.device, timeout_s: float
    ) -> None:
        """Connects; both ends at the same time.

        Raises:
            RuntimeError: NCCL refuses.
            TransferFailed: the other end did not come.
        """
        nccl = vars(distributed)["ProcessGroupNCCL"]  # absent in torch for CPUs and in its stubs
        options = nccl.Options()
        options._timeout = WATCHDOG_TIMEOUT
        self._group = nccl(store, rank, 2, options)
        self._peer = 1 - rank
        self._device = device
        self._timeout_s = timeout_s
        self._stream = torch.Stream(device)
        # The communicator is made by the first message, and both ends wait in it for each other.
        first = torch.zeros(1, dtype=torch.uint8, device=device)
        self.finish(self.begin_send(first) if rank == 0 else self.begin_receive(first))

    def begin_send(self, tensor: torch.Tensor) -> torch.Event:
        """Issues a send; the tensor is the caller's again after `finish`."""
        with self._stream:
            self._group.send([tensor], self._peer, 0).synchronize()
            return self._stream.record_event()

    def begin_receive(self, tensor: torch.Tensor) -> torch.Event:
        """Issues a receive of a send that the peer has issued."""
        with self._stream:
            self._group.recv([tensor], self._peer, 0).synchronize()
            return self._stream.record_event()

    def finish(self, event: torch.Event) -> None:
        """Waits until the device has done what was begun.

        Raises:
            TransferFailed: it was not within the timeout; the communicator is aborted.
        """
        deadline_s = time.monotonic() + self._timeout_s
        while not event.query():
            if time.monotonic() > deadline_s:
                self.abort()
                raise TransferFailed(f"NCCL did not finish within {self._timeout_s:g} s")
            time.sleep(POLL_S)

    def abort(self) -> None:
        """Ends what runs, at this end."""
        self._group.abort()
