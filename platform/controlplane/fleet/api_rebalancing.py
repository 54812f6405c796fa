"""`/api/v1/rebalancing`: what the rebalancer does, and its pause."""

import time
from typing import Any, Final

from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.inputs import read_input
from controlplane.fleet.api_moves import REFUSED, MoveView
from controlplane.fleet.choice import served_pool
from controlplane.fleet.move_serializers import MoveErrorSerializer
from controlplane.fleet.rebalancing import (
    MINUTES_MAX,
    rebalancing_get,
    rebalancing_pause,
    rebalancing_resume,
)
from controlplane.fleet.rebalancing_picture import SILENT, state_of
from engine_pool.client import pool_client
from engine_pool.rebalancing_facts import RebalancerState, RebalancingFacts

_AWAY: Final = {503: OpenApiResponse(MoveErrorSerializer, "The store does not answer.")}
_NO_OPERATOR: Final = {403: REFUSED[403]}


class PauseInput(serializers.Serializer[object]):
    minutes = serializers.IntegerField(
        min_value=1,
        max_value=MINUTES_MAX,
        allow_null=True,
        help_text="How long; null: until it is resumed.",
    )
    reason = serializers.CharField(
        max_length=500, allow_blank=True, default="", help_text="For the audit log and the strip."
    )


class ResumeInput(serializers.Serializer[object]):
    reason = serializers.CharField(max_length=500, allow_blank=True, default="")


class PauseSerializer(serializers.Serializer[object]):
    by = serializers.CharField()
    since_unix_s = serializers.FloatField()
    until_unix_s = serializers.FloatField(allow_null=True, help_text="Null: until it is resumed.")
    reason = serializers.CharField()


class GivingPairSerializer(serializers.Serializer[object]):
    source = serializers.CharField()
    destination = serializers.CharField()
    reason = serializers.CharField(help_text="Both freenesses and the thresholds.")
    why_idle = serializers.CharField(help_text="Why no further move begins; empty: one may.")


class RebalancingSerializer(serializers.Serializer[object]):
    state = serializers.CharField(
        help_text=f"{', '.join(s.value for s in RebalancerState)}, or {SILENT}: the pool process "
        "says nothing."
    )
    why = serializers.CharField(help_text="Why it is not on, or why nothing is paired.")
    pause = PauseSerializer(allow_null=True)
    below_steps = serializers.FloatField(help_text="Sources are less free than this.")
    above_steps = serializers.FloatField(help_text="Destinations are freer than this.")
    interval_ms = serializers.FloatField()
    moves_per_instance = serializers.IntegerField()
    tokens_per_round = serializers.IntegerField()
    report_age_s = serializers.FloatField(
        allow_null=True, help_text="Of what the pool process says; null: nothing yet."
    )
    last_round_age_s = serializers.FloatField(allow_null=True)
    round_ms = serializers.FloatField(allow_null=True)
    rounds_total = serializers.IntegerField()
    pairs = GivingPairSerializer(many=True)
    pairs_total = serializers.IntegerField()
    minutes = serializers.FloatField(help_text="The window of the next two.")
    started_lately = serializers.IntegerField()
    refused_lately = serializers.DictField(child=serializers.IntegerField(), help_text="By code.")
    started_total = serializers.IntegerField(help_text="Since the pool process's start.")
    refused_total = serializers.DictField(child=serializers.IntegerField())


class RebalancingView(MoveView):
    @extend_schema(
        responses={200: RebalancingSerializer, **_NO_OPERATOR, **_AWAY},
        summary="What the rebalancer does now",
    )
    def get(self, request: Request) -> Response:
        return Response(_body(rebalancing_get()))


class PauseView(MoveView):
    @extend_schema(
        request=PauseInput,
        responses={200: RebalancingSerializer, **_NO_OPERATOR, **_AWAY},
        summary="Let no automatic moves begin for a time; drains and operators' moves go on",
    )
    def post(self, request: Request) -> Response:
        wanted = read_input(PauseInput, request)
        rebalancing_pause(user=request.user, minutes=wanted["minutes"], reason=wanted["reason"])
        return Response(_body(rebalancing_get()))


class ResumeView(MoveView):
    @extend_schema(
        request=ResumeInput,
        responses={200: RebalancingSerializer, 409: REFUSED[409], **_NO_OPERATOR, **_AWAY},
        summary="Let automatic moves begin again",
    )
    def post(self, request: Request) -> Response:
        wanted = read_input(ResumeInput, request)
        rebalancing_resume(user=request.user, reason=wanted["reason"])
        return Response(_body(rebalancing_get()))


def _body(facts: RebalancingFacts) -> dict[str, Any]:
    now_unix_s = time.time()
    state, why = state_of(facts, now_unix_s)
    rule, report = (served_pool() or pool_client()).config.policy.rebalance, facts.report
    holds = facts.pause is not None and facts.pause.holds(now_unix_s)
    # Before the pool process has said anything its settings are this process's own.
    told: Any = report or rule
    last = report.last_round_unix_s if report else None
    body = {
        "state": state,
        "why": why,
        "pause": facts.pause if holds else None,
        "below_steps": told.below_steps,
        "above_steps": told.above_steps,
        "interval_ms": told.interval_ms,
        "moves_per_instance": told.moves_per_instance,
        "tokens_per_round": told.tokens_per_round,
        "report_age_s": round(now_unix_s - report.at_unix_s, 3) if report else None,
        "last_round_age_s": None if last is None else round(now_unix_s - last, 3),
        "round_ms": report.round_ms if report else None,
        "rounds_total": report.rounds_total if report else 0,
        "pairs": report.pairs if report else (),
        "pairs_total": report.pairs_total if report else 0,
        "minutes": report.minutes if report else 0.0,
        "started_lately": report.started_lately if report else 0,
        "refused_lately": report.refused_lately if report else {},
        "started_total": report.started_total if report else 0,
        "refused_total": report.refused_total if report else {},
    }
    return dict(RebalancingSerializer(body).data)
