"""What a body may hold: pure."""

from typing import Any

import pytest

from controlplane.gateway.errors import ApiError
from controlplane.gateway.fields import REFUSED, check_fields, class_of
from engine_pool.types import PriorityClass

KNOWN = frozenset({"messages", "logprobs", "top_logprobs", "response_format", *REFUSED})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param({"what": 1}, "what", id="unknown"),
        pytest.param({"kv_transfer_params": {}}, "kv_transfer_params", id="not served, empty"),
        pytest.param({"use_beam_search": True}, "use_beam_search", id="beam search"),
        pytest.param({"prompt_embeds": "x"}, "prompt_embeds", id="embeddings"),
        pytest.param({"length_penalty": 2.0}, "length_penalty", id="not its default"),
        pytest.param({"request_id": "mine"}, "request_id", id="own id"),
    ],
)
def test_what_is_not_served_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_fields(body, KNOWN, is_simulated=False)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"messages": [], "service_tier": "auto"}, id="plain"),
        pytest.param({"use_beam_search": False}, id="off"),
        pytest.param({"kv_transfer_params": None}, id="null"),
        pytest.param({"length_penalty": 1.0}, id="default"),
        pytest.param({"logprobs": True, "top_logprobs": 3}, id="logprobs"),
    ],
)
def test_what_is_served_or_off_passes(body: dict[str, Any]) -> None:
    check_fields(body, KNOWN, is_simulated=False)


@pytest.mark.parametrize(
    ("body", "passes"),
    [
        pytest.param({"logprobs": True}, False, id="logprobs"),
        pytest.param({"logprobs": False, "top_logprobs": 0}, True, id="no logprobs"),
        pytest.param({"response_format": {"type": "json_object"}}, False, id="json"),
        pytest.param({"response_format": {"type": "text"}}, True, id="text"),
    ],
)
def test_simulated_engines_say_what_they_cannot(body: dict[str, Any], passes: bool) -> None:
    if passes:
        check_fields(body, KNOWN, is_simulated=True)
        return
    with pytest.raises(ApiError):
        check_fields(body, KNOWN, is_simulated=True)


HIGH, NORMAL, LOW = PriorityClass.HIGH, PriorityClass.NORMAL, PriorityClass.LOW


@pytest.mark.parametrize(
    ("body", "allowed", "expected"),
    [
        pytest.param({}, NORMAL, NORMAL, id="the tenant's own"),
        pytest.param({"service_tier": "auto"}, HIGH, HIGH, id="auto"),
        pytest.param({"service_tier": "flex"}, HIGH, LOW, id="lowered"),
        pytest.param({"service_tier": "priority"}, NORMAL, NORMAL, id="not raised"),
        pytest.param({"service_tier": "priority"}, HIGH, HIGH, id="allowed"),
        pytest.param({"priority": 3}, HIGH, LOW, id="vLLM's priority, later"),
        pytest.param({"priority": -3}, NORMAL, NORMAL, id="vLLM's priority, not raised"),
        pytest.param({"priority": 0}, NORMAL, NORMAL, id="vLLM's default"),
        pytest.param({"service_tier": "flex", "priority": -1}, HIGH, LOW, id="tier goes first"),
    ],
)
def test_a_request_may_lower_its_class_only(
    body: dict[str, Any], allowed: PriorityClass, expected: PriorityClass
) -> None:
    assert class_of(body, allowed, allowed) is expected


def test_what_says_nothing_gets_the_tenants_default() -> None:
    assert class_of({}, LOW, HIGH) is LOW
    assert class_of({"service_tier": "priority"}, LOW, HIGH) is HIGH


def test_an_unknown_tier_is_refused() -> None:
    with pytest.raises(ApiError) as caught:
        class_of({"service_tier": "gold"}, NORMAL, NORMAL)
    assert caught.value.param == "service_tier"
