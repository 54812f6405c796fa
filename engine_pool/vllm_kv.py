"""One rank's KV memory of a vLLM engine, as blocks that travel (migration.ports.KvBlockIo).

vLLM keeps one cache a layer, logically (blocks, heads, tokens, channels), K and V side by side in
the channels; physically in whatever order the attention backend likes. A buffer holds its blocks as
(layers, blocks, heads, tokens, channels), packed for the number of blocks at hand: the first
`blocks * block_bytes` bytes. That order lets one call copy a layer's blocks, and where all layers
lie evenly in one allocation (vLLM's own layouts do) one call copies everything: few turns of the
interpreter lock, which a background thread must share with the step thread.

Measured on one core of a shared machine, bf16, blocks of 2.9 MB in 30 layers: 5 to 10 GB/s for
either direction and 0.2 ms for one block; rows of whole blocks instead of layers are no faster. On
CPU numpy copies, not torch: it is as fast for gather, three times as fast for scatter, and starts
no OpenMP threads beside those of the step.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine_pool.errors import EngineFailed

if TYPE_CHECKING:
    import torch


class VllmKv:
    """Any thread may call it. Its views keep the memory alive even after the engine has closed."""

    def __init__(self, caches: "Sequence[torch.Tensor]", blocks: int) -> None:
        """`caches`: each layer's cache, (blocks, heads, tokens, channels). Raises: EngineFailed
        when they are not laid out like that."""
        import torch

        # Layers that share one cache (cross-layer sharing) move once.
        distinct = list({cache.data_ptr(): cache for cache in caches}.values())
        for cache in distinct:
            if cache.dim() < 2 or cache.shape[0] != blocks:
                raise EngineFailed(
                    f"a KV cache of shape {tuple(cache.shape)} does not hold {blocks} blocks"
                )
        if not distinct:
            raise EngineFailed("the model has no KV cache")
        self._stacks = _stacked(distinct)
        self.layers = len(distinct)
        self.dtype = distinct[0].dtype
        self.block_shape = tuple(distinct[0].shape[1:])
        self._block_bytes = sum(c[0].numel() * c.element_size() for c in distinct)
        self._device = distinct[0].device
        # Step kernels go first: 0 is the lowest priority of a CUDA stream.
        cuda: Any = torch.cuda
        self._stream = cuda.Stream(self._device, priority=0) if self.is_on_gpu else None
        self._flat = [] if self.is_on_gpu else [_bytes_of(stack) for stack in self._stacks]

    @property
    def block_bytes(self) -> int:
        return self._block_bytes

    @property
    def device(self) -> "torch.device":
        return self._device

    @property
    def is_on_gpu(self) -> bool:
        return self._device.type != "cpu"

    def new_buffer(self, blocks: int) -> "torch.Tensor":
        """On the KV's device, where NCCL wants it; pinned host memory is as good to gather and
        scatter."""
        import torch

        return torch.empty((blocks, self._block_bytes), dtype=torch.uint8, device=self._device)

    def gather(self, block_ids: Sequence[int], buffer: object) -> None:
        if self.is_on_gpu:
            self._gather_from_gpu(block_ids, buffer)
            return
        ids = np.asarray(block_ids, dtype=np.intp)
        for flat, part in zip(self._flat, self._parts(len(ids), buffer), strict=True):
            rows = part.numpy().reshape(flat.shape[0], len(ids), flat.shape[2])
            # "clip" writes straight into `rows`; the ids are the engine's own and in range.
            np.take(flat, ids, axis=1, out=rows, mode="clip")

    def scatter(self, block_ids: Sequence[int], buffer: object) -> None:
        if self.is_on_gpu:
            self._scatter_to_gpu(block_ids, buffer)
            return
        ids = np.asarray(block_ids, dtype=np.intp)
        for flat, part in zip(self._flat, self._parts(len(ids), buffer), strict=True):
            flat[:, ids] = part.numpy().reshape(flat.shape[0], len(ids), flat.shape[2])

    def _parts(self, blocks: int, buffer: object) -> "list[torch.Tensor]":
        """Splits the used bytes of a buffer among the stacks. Raises: ValueError when it is too
        small."""
        import torch

        assert isinstance(buffer, torch.Tensor), "buffers come from new_buffer"
        used_bytes = blocks * self._block_bytes
        if buffer.numel() < used_bytes:
            raise ValueError(f"a buffer of {buffer.numel()} bytes is too small for {used_bytes}")
        sizes = [s[:, 0].numel() * s.element_size() * blocks for s in self._stacks]
        return list(torch.split(buffer.view(-1)[:used_bytes], sizes))

    # Not on the step's stream: nothing here may wait for a step, or a step for it. Complete blocks
    # are settled, so reading needs no event; a held request's blocks are nobody else's, and its
    # first step begins after scatter has returned.
    def _gather_from_gpu(self, block_ids: Sequence[int], buffer: object) -> None:
        import torch

        assert self._stream is not None
        with torch.cuda.stream(self._stream):
            ids = torch.tensor(block_ids, device=self._device)
            for stack, part in zip(self._stacks, self._parts(len(ids), buffer), strict=True):
                fused = torch.index_select(stack, 1, ids)
                part.copy_(fused.view(-1).view(torch.uint8), non_blocking=True)
            self._stream.synchronize()

    def _scatter_to_gpu(self, block_ids: Sequence[int], buffer: object) -> None:
        import torch

        assert self._stream is not None
        with torch.cuda.stream(self._stream):
            ids = torch.tensor(block_ids, device=self._device)
            for stack, part in zip(self._stacks, self._parts(len(ids), buffer), strict=True):
                fused = part.to(self._device, non_blocking=True).view(stack.dtype)
                stack.index_copy_(1, ids, fused.view(stack.shape[0], len(ids), *stack.shape[2:]))
            self._stream.synchronize()


def _stacked(caches: "list[torch.Tensor]") -> "list[torch.Tensor]":
    """Returns views of shape (layers, blocks, ...): one over all layers where they are alike and
    lie evenly in one allocation, else one a layer."""
    first = caches[0]
    gap_bytes = caches[1].data_ptr() - first.data_ptr() if len(caches) > 1 else 0
    is_even = gap_bytes % first.element_size() == 0 and all(
        c.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and c.data_ptr() == first.data_ptr() + n * gap_bytes
        and (c.dtype, c.shape, c.stride()) == (first.dtype, first.shape, first.stride())
        for n, c in enumerate(caches)
    )
    if not is_even or gap_bytes < 0:
        return [cache.unsqueeze(0) for cache in caches]
    strides = (gap_bytes // first.element_size(), *first.stride())
    return [first.as_strided((len(caches), *first.shape), strides)]


def _bytes_of(stack: "torch.Tensor") -> "np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]":
    """Views a stack in host memory as (layers, blocks, bytes). Raises: EngineFailed when a block of
    a layer is not one run of bytes."""
    import torch

    if not stack[0, 0].is_contiguous():
        raise EngineFailed("the blocks of the KV cache in host memory are not contiguous")
    layers, blocks = stack.shape[:2]
    block = stack[0, 0].numel()
    flat = stack.as_strided((layers, blocks, block), (*stack.stride()[:2], 1))
    view: np.ndarray[tuple[int, int, int], np.dtype[np.uint8]] = flat.view(torch.uint8).numpy()
    return view
