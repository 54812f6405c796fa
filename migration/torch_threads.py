"""Keeps torch from spreading the calling thread's work over the processors the decoding needs."""

import threading

import torch

_one_at_a_time = threading.Lock()


def use_one_torch_thread() -> None:
    """Makes torch run the calling thread's operations in this thread alone.

    `torch.set_num_threads` does that, but it also sets what threads begin with that have not used
    torch yet: an engine's step thread may be one. So another thread sets that number back.
    """
    with _one_at_a_time:
        others = torch.get_num_threads()
        torch.set_num_threads(1)
        restoring = threading.Thread(target=torch.set_num_threads, args=(others,), daemon=True)
        restoring.start()
        restoring.join()
