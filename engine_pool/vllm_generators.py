"""Lets vLLM take back a random draw on a CPU: a prompt cut into chunks with a seed would end the
engine.

The runner samples after every chunk of a prompt and discards all but the last sample; it takes the
draw back by the generator's offset, which only GPU generators have ("CPU Generator does not use
offset", vLLM 0.32, GPUModelRunner._bookkeeping_sync). Here a row of the batch remembers its
generator's state from when the request came into the batch, and goes back to it instead: all that
was drawn since is discarded samples, since a request whose prompt, or what a preemption took, is
computed anew comes into the batch anew.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class _Rewindable:
    """A generator as the runner sees it when it takes a draw back."""

    def __init__(self, generator: "torch.Generator", state: "torch.Tensor") -> None:
        self.generator = generator
        self._state = state

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> None:
        self.generator.set_state(self._state)


class RewindingGenerators(dict[int, Any]):
    """InputBatch.generators: row -> torch.Generator of a request with a seed."""

    def __init__(self) -> None:
        super().__init__()
        self._states: dict[int, torch.Tensor] = {}

    def __setitem__(self, row: int, generator: Any) -> None:
        if isinstance(generator, _Rewindable):
            # vLLM swaps two rows with what `get` gave it.
            generator = generator.generator
        super().__setitem__(row, generator)
        self._states[row] = generator.get_state()

    def get(self, row: int, default: Any = None) -> Any:
        generator = super().get(row)
        return default if generator is None else _Rewindable(generator, self._states[row])

    def pop(self, row: int, *default: Any) -> Any:
        self._states.pop(row, None)
        return super().pop(row, *default)


def make_draws_revocable(runner: Any) -> None:
    """Prepares a runner on a CPU; its batch must be empty."""
    assert not runner.input_batch.generators, "no request is in the batch"
    runner.input_batch.generators = RewindingGenerators()
