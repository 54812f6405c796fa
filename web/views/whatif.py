"""What would change if...? The form, the runs, and one run with its charts."""

import logging
from textwrap import shorten
from typing import Any, Final

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from controlplane.fleet.observer import Picture
from controlplane.fleet.watch import fleet_watch
from controlplane.tenants.access import Role
from controlplane.whatif import checks, files
from controlplane.whatif.limits import NAME_MAX_CHARS
from controlplane.whatif.models import SimulationRun
from controlplane.whatif.present import COSTS_FILE, RecentLoad, present_scenario, recent_load
from controlplane.whatif.selectors import run_get, runs_before, runs_list
from controlplane.whatif.services import run_cancel, run_start
from controlplane.whatif.toml import toml_of
from controlplane.whatif.values import Scenario, WhatIfRefused, Wish
from web import whatif_charts, whatif_facts, whatif_fields, whatif_form, whatif_notes, whatif_words
from web.views.access import needs
from web.views.frame import render_page

logger = logging.getLogger(__name__)

PAGE: Final = "whatif"
FROM_NOW: Final = ""
"""The form's origin when it begins with the pool as it is."""


@needs(Role.VIEWER, to_post=Role.OPERATOR)
@require_http_methods(["GET", "HEAD", "POST"])
def whatif(request: HttpRequest) -> HttpResponse:
    """Shows the form and the runs; POST starts one and goes to its page."""
    if getattr(request, "htmx", False) and request.method != "POST":
        context = {"page_of_runs": runs_list(), "now_unix_s": timezone.now().timestamp()}
        response = render(request, "whatif/runs.html", context)
        response["Cache-Control"] = "no-store"
        return response
    picture = fleet_watch().observer.look()
    load = recent_load(now=timezone.now())
    now = _now(picture, load)
    if request.method == "POST":
        return _start(request, picture, load, now)
    origin = _origin(request.GET)
    run = run_get(origin.removeprefix("run:")) if origin.startswith("run:") else None
    base = run.scenario if run is not None else _base(origin, now)
    compare = whatif_form.compare_of(run.baseline_label) if run is not None else "now"
    filled = {**whatif_form.values_of(base), "origin": origin, "compare": compare}
    return _page(request, picture, load, filled, {})


@needs(Role.VIEWER)
@require_safe
def run(request: HttpRequest, run_id: str) -> HttpResponse:
    """Shows one run; a script asks for the fragment again and again while it goes on."""
    return _one(request, _found(run_id))


@needs(Role.OPERATOR)
@require_POST
def cancel(request: HttpRequest, run_id: str) -> HttpResponse:
    """Ends a run that waits or runs, and goes back to its page."""
    found = _found(run_id)
    try:
        run_cancel(user=request.user, run=found)
    except WhatIfRefused as refusal:
        return _one(request, _found(run_id), error=str(refusal), status=409)
    return _see(found)


@needs(Role.VIEWER)
@require_safe
def scenario_file(request: HttpRequest, run_id: str, side: str) -> HttpResponse:
    """Gives one side of a run as the simulator's command reads it."""
    found = _found(run_id)
    scenario = found.scenario if side == "scenario" else found.baseline
    if scenario is None:
        raise Http404("The run has no baseline.")
    response = HttpResponse(toml_of(scenario), content_type="application/toml; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{side}-{found.run_id}.toml"'
    return response


def _start(
    request: HttpRequest, picture: Picture, load: RecentLoad | None, now: Scenario
) -> HttpResponse:
    given = {name: str(value)[:200] for name, value in request.POST.items()}
    given["origin"] = _origin(given)
    base = _base(given["origin"], now)
    scenario, errors = whatif_form.read(given, base)
    compare, problem = given.get("compare", "none"), ""
    try:
        whole = _checked(scenario, base, errors)
        if not errors:
            baseline = whatif_form.baseline_of(compare, whole, now)
            name = given.get("name", "").strip() or _name(whole, baseline)
            wish = Wish(name, whole, baseline, whatif_form.label_of(compare))
            return _see(run_start(user=request.user, wish=wish))
    except WhatIfRefused as refusal:
        problem = f"{refusal.field}: {refusal}" if refusal.field else str(refusal)
    return _page(request, picture, load, given, errors, problem=problem, status=400)


def _checked(scenario: Scenario, base: Scenario, errors: dict[str, str]) -> Scenario:
    """Returns the scenario with every value, and notes each field that is wrong in `errors`.

    Raises: WhatIfRefused for what is no field's of the form, or wrong in `base` too.
    """
    while True:
        try:
            return checks.check_scenario(scenario)
        except WhatIfRefused as refusal:
            if refusal.field not in whatif_fields.FIELDS or refusal.field in errors:
                raise
            errors[refusal.field] = whatif_form.in_words(str(refusal))
            whatif_form.put_back(scenario, refusal.field, base)


def _page(
    request: HttpRequest,
    picture: Picture,
    load: RecentLoad | None,
    values: dict[str, str],
    errors: dict[str, str],
    *,
    problem: str = "",
    status: int = 200,
) -> HttpResponse:
    choices = {whatif_fields.TRACE: files.names(".csv"), whatif_fields.COSTS: files.names(".json")}
    context: dict[str, Any] = {
        "page": PAGE,
        "groups": whatif_form.groups(values, errors, choices),
        "compare": values.get("compare", "now"),
        "compares": whatif_fields.COMPARE,
        "name": values.get("name", ""),
        "name_max": NAME_MAX_CHARS,
        "origin": values["origin"],
        "presets": [(f"preset:{k}", s["name"] or k) for k, s in checks.presets().items()],
        "load_words": whatif_notes.load_words(load),
        "errors": errors,
        "problem": problem,
        "page_of_runs": runs_list(),
    }
    response = render_page(request, "whatif/page.html", picture, context)
    response.status_code = status
    return response


def _one(
    request: HttpRequest, found: SimulationRun, *, error: str = "", status: int = 200
) -> HttpResponse:
    picture = fleet_watch().observer.look()
    label = found.baseline_label or "baseline"
    context: dict[str, Any] = {
        "page": PAGE,
        "run": found,
        "error": error,
        "label": label,
        "facts": whatif_facts.facts(found.scenario, found.baseline),
        "notes": whatif_notes.assumptions(found.scenario),
        "waiting": whatif_notes.progress_words(found, runs_before(found), timezone.now()),
        "now_unix_s": picture.at_unix_s,
    }
    if found.report is not None:
        sides = (found.report, found.baseline_report, label)
        context |= {
            "sentence": whatif_words.sentence(*sides),
            "tiles": whatif_words.tiles(*sides),
            "charts": whatif_charts.charts(*sides),
            "chart_data": whatif_charts.data(*sides),
            "tables": whatif_charts.tables(*sides),
            "table_columns": whatif_charts.TABLE_COLUMNS,
            "class_columns": [heading for heading, _ in whatif_words.CLASS_COLUMNS],
            "class_rows": whatif_words.class_rows(*sides),
            "move_facts": whatif_words.move_facts(*sides),
        }
    if getattr(request, "htmx", False):
        response = render(request, "whatif/run.html", context)
        response["Cache-Control"] = "no-store"
    else:
        response = render_page(request, "whatif/run_page.html", picture, context)
    response.status_code = status
    return response


def _now(picture: Picture, load: RecentLoad | None) -> Scenario:
    """Returns the pool as it is, with every value."""
    rows = picture.rows.values()
    serving = sum(row.state == "serving" for row in rows)
    capacities = [row.capacity_tokens for row in rows if row.capacity_tokens]
    measured = COSTS_FILE if COSTS_FILE in files.names(".json") else ""

    def present(costs_file: str) -> Scenario:
        return checks.complete(
            present_scenario(
                settings.POOL,
                load,
                instances=serving or settings.POOL.instances,
                capacity_tokens=min(capacities, default=None),
                costs_file=costs_file,
            )
        )

    try:
        return present(measured)
    except WhatIfRefused as refusal:
        # A measurement that cannot be read must not take the page away.
        logger.warning("%s is not used: %s", measured, refusal)
        return present("")


def _origin(values: Any) -> str:
    """Returns where the form's values began: now, preset:<name> or run:<id>."""
    given = str(values.get("origin", FROM_NOW))[:100]
    is_known = given.startswith("run:") or given.removeprefix("preset:") in checks.presets()
    return given if is_known else FROM_NOW


def _base(origin: str, now: Scenario) -> Scenario:
    kind, _, key = origin.partition(":")
    if kind == "preset":
        return checks.presets().get(key, now)
    found = run_get(key) if kind == "run" else None
    return now if found is None else found.scenario


def _name(scenario: Scenario, baseline: Scenario | None) -> str:
    changed = whatif_facts.changes(scenario, baseline) if baseline is not None else []
    named = ", ".join(changed[:2]) or scenario["name"] or "The pool as it is"
    return shorten(str(named[:1].upper() + named[1:]), NAME_MAX_CHARS, placeholder="…")


def _found(run_id: str) -> SimulationRun:
    found = run_get(run_id)
    if found is None:
        raise Http404("There is no run of this id.")
    return found


def _see(found: SimulationRun) -> HttpResponse:
    response = HttpResponseRedirect(reverse("web:whatif-run", args=[found.run_id]))
    response.status_code = 303
    return response
