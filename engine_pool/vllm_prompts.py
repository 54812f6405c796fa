"""Whose prompt a vLLM engine computes first, when one step does not take them all.

vLLM gives a step's tokens to the running requests in the order of their list, then to the queue:
one long prompt of a low class would take whole steps while a high request waits for its first
token. So before a step the running ones are put in order, those that decode first (a token each),
then prompts by class; and while a request of a higher class waits, prompts get only a share each.
Nothing is computed twice.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine_pool.policy.urgency import prompt_share_tokens

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.request import Request


class VllmPrompts:
    """Step thread only. `rank_of`: what a request counts as; lower is more urgent."""

    def __init__(self, core: "EngineCore", rank_of: Callable[[str], int]) -> None:
        scheduler: Any = core.scheduler
        self._scheduler = scheduler
        self._config = scheduler.scheduler_config
        self._rank_of = rank_of
        self._usual_tokens: int = self._config.long_prefill_token_threshold

    def share(self, first: "Request | None") -> None:
        """Arranges the next step. `first`: of the queue, None if nobody could come in."""
        scheduler = self._scheduler
        prompts = [self._rank_of(r.request_id) for r in scheduler.running if r.is_prefill_chunk]
        tokens = self._usual_tokens
        if prompts:
            scheduler.running.sort(key=self._order)
            if first is not None and len(scheduler.running) < scheduler.max_num_active_reqs:
                rank = self._rank_of(first.request_id)
                share = prompt_share_tokens(rank, prompts, scheduler.max_num_scheduled_tokens)
                tokens = min(filter(None, (share, tokens)), default=0)
        self._config.long_prefill_token_threshold = tokens

    def _order(self, own: "Request") -> tuple[bool, int]:
        is_prompt = bool(own.is_prefill_chunk)
        return is_prompt, self._rank_of(own.request_id) if is_prompt else 0
