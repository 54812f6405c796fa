"""docs/operate.md says what each setting's default is; here it is held to the code."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from django.conf import settings

from engine_pool.config import PoolConfig
from engine_pool.policy.settings import PolicySettings
from engine_pool.policy_env import DISPATCH, HIGH_TARGET, REBALANCE
from engine_pool.types import PriorityClass
from ops.settings import DEFAULT_HOST, DEFAULT_PORT, SHORT_NAMES

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(
    r"^\| `(?P<long>[A-Z_]+)` \| (?:`(?P<short>[A-Z_]+)`)? ?\| (?:`(?P<default>[^`]*)`)? ?\|"
)
WORDS = {"None": "", "True": "on", "False": "off"}
OF_DJANGO = (
    "RECORDS_KEPT_DAYS",
    "SCALING_CHECK_S",
    "USAGE_KEPT_DAYS",
    "TENANT_METRICS",
    "WEB_GRACE_S",
)
FIELD_OF = {"FERRY_REQUEST_MAX_AGE_S": "log_live_s", "FERRY_RESUME_S": "log_ended_s"}


def documented() -> dict[str, tuple[str | None, str | None]]:
    rows = (ROW.match(line) for line in (ROOT / "docs/operate.md").read_text().splitlines())
    return {m["long"]: (m["short"], m["default"]) for m in rows if m}


def test_every_short_name_is_documented_with_its_long_one() -> None:
    assert {v: k for k, v in SHORT_NAMES.items()}.items() <= {
        long: short for long, (short, _) in documented().items()
    }.items()


def policy_defaults() -> dict[str, object]:
    rules = PolicySettings()
    found: dict[str, object] = {}
    for variables, rule in ((DISPATCH, rules.dispatch), (REBALANCE, rules.rebalance)):
        found |= {name: getattr(rule, v.field) for name, v in variables.items()}
    return found | {HIGH_TARGET: rules.dispatch.headroom.target_load_tokens[PriorityClass.HIGH]}


def test_every_variable_of_the_rules_is_documented() -> None:
    assert policy_defaults().keys() <= documented().keys()


@pytest.mark.parametrize("long", [n for n in documented() if n.startswith("FERRY_")])
def test_a_documented_default_is_the_real_one(long: str) -> None:
    known = {f.name: f.default for f in fields(PoolConfig)}
    known |= {"port": DEFAULT_PORT, "host": DEFAULT_HOST}
    known |= policy_defaults()
    known |= {name.lower(): getattr(settings, name) for name in OF_DJANGO}
    name = long if long in known else FIELD_OF.get(long, long.removeprefix("FERRY_").lower())
    _, default = documented()[long]
    if name not in known:
        assert long in {"FERRY_SECRET_KEY", "FERRY_ALLOWED_HOSTS", "FERRY_WHATIF_DIR"}
        return
    value = known[name]
    shown = WORDS.get(repr(value), str(value))
    assert (default or "") == shown
