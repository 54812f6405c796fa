"""The dialogs that cordon, drain, stop, restart and release an instance or a node."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from controlplane.errors import VersionConflict
from controlplane.fleet import fleet_now as fleet
from controlplane.fleet import wish_services as services
from controlplane.fleet.drain_plan import drain_plan
from controlplane.fleet.fleet_now import FleetNow
from controlplane.fleet.models import Wish
from controlplane.fleet.watch import fleet_watch
from controlplane.fleet.wish_rows import instance_pool, wishes_now
from controlplane.fleet.wish_terms import (
    NONE_SEEN,
    REASON_MAX_CHARS,
    HeldByNode,
    NeedsForce,
    NothingToRestart,
    Terms,
    WishedByAnother,
    left_without,
    node_check,
)
from controlplane.tenants.access import Access, Role
from engine_pool.policy.wishes import Leftover
from web.drain_dialog import INSTANCE_ACTIONS, LEFTOVERS, NODE_ACTIONS, Dialog, dialog_of
from web.views.access import PageRequest, needs
from web.views.frame import render_page

MINUTES_DEFAULT: Final = 10
"""After which a dialog offers to look at what is left; most answers end long before."""
MINUTES_MAX: Final = 7 * 24 * 60


@dataclass(frozen=True, slots=True)
class Press:
    """What a form says; values as they were typed, to be shown again."""

    minutes: str = str(MINUTES_DEFAULT)
    leftover: str = Leftover.WAIT.value
    reason: str = ""
    version: str = ""
    confirm: str = ""


@needs(Role.OPERATOR)
@require_http_methods(["GET", "HEAD", "POST"])
def instance_action(request: PageRequest, name: str, action: str) -> HttpResponse:
    """Shows the dialog, or does what it asks for and goes to the instance's page."""
    if action not in INSTANCE_ACTIONS:
        raise Http404("There is no such action.")
    now = fleet.fleet_now()
    instance_pool(name, now.statuses.values())
    row, names = wishes_now().own(name), {name}
    dialog = _dialog_of(action, name, row, now, names, None)
    where = reverse("web:instance", args=[name])
    return _answer(request, dialog, row, where, is_node=False)


@needs(Role.OPERATOR)
@require_http_methods(["GET", "HEAD", "POST"])
def node_action(request: PageRequest, node: str, action: str) -> HttpResponse:
    """The same for a node with all of its instances."""
    if action not in NODE_ACTIONS:
        raise Http404("There is no such action.")
    now = fleet.fleet_now()
    node_check(node, now)
    row, names = wishes_now().of_node(node), {str(s.instance) for s in now.of_node(node)}
    dialog = _dialog_of(action, node, row, now, names, len(names))
    where = reverse("web:node", args=[node])
    if action == "release" and not names:
        # Without a wish nobody knows it any more.
        where = reverse("web:cluster")
    return _answer(request, dialog, row, where, is_node=True)


def _dialog_of(
    action: str,
    name: str,
    row: Wish | None,
    now: FleetNow,
    names: set[str],
    instances: int | None,
) -> Dialog:
    observer = fleet_watch(_pool_of(now, names)).observer
    policy = observer.policy
    plan = drain_plan(
        now, names, headroom=policy.dispatch.headroom, at_once=policy.rebalance.moves_per_instance
    )
    last_of = left_without(now, names) if action != "release" else []
    band = observer.look().band
    return dialog_of(action, name, plan, row, last_of, band=band, instances=instances)


def _pool_of(now: FleetNow, names: set[str]) -> str:
    """Returns whose rules tell most of a drain; a node may have instances of several pools."""
    counts = Counter(now.statuses[name].pool for name in names if name in now.statuses)
    return max(sorted(counts), key=counts.__getitem__, default="")


def _answer(
    request: PageRequest, dialog: Dialog, row: Wish | None, where: str, *, is_node: bool
) -> HttpResponse:
    seen = str(NONE_SEEN if row is None else row.version)
    if request.method != "POST":
        return _show(request, dialog, Press(version=seen), where, is_node=is_node)
    sent = request.POST
    press = Press(
        minutes=sent.get("minutes", "")[:10].strip(),
        leftover=sent.get("leftover", Leftover.WAIT.value)[:10],
        reason=sent.get("reason", "")[:REASON_MAX_CHARS],
        version=sent.get("version", seen)[:10],
        confirm=sent.get("confirm", "")[:300],
    )
    try:
        terms = _terms(press, dialog)
        _act(request.access, dialog, terms, is_node=is_node)
    except ValidationError as problem:
        return _show(request, dialog, press, where, _words(problem), 400, is_node=is_node)
    except VersionConflict:
        # The facts above are those of now; the next press has seen them.
        press = Press(press.minutes, press.leftover, press.reason, seen, press.confirm)
        said = "This changed while you read it. What is wanted now stands above."
        return _show(request, dialog, press, where, said, 409, is_node=is_node)
    except (WishedByAnother, NeedsForce, NothingToRestart, HeldByNode) as refusal:
        return _show(request, dialog, press, where, str(refusal), 409, is_node=is_node)
    response = HttpResponseRedirect(where)
    response.status_code = 303
    return response


def _terms(press: Press, dialog: Dialog) -> Terms:
    """Raises: ValidationError naming the field."""
    if not press.reason.strip() and dialog.action not in ("cordon", "release"):
        raise ValidationError({"reason": "say why: it goes into the audit log"})
    deadline_s, leftover = None, Leftover.WAIT
    if dialog.has_deadline and press.minutes:
        try:
            minutes = float(press.minutes)
        except ValueError:
            minutes = float("nan")
        if not 0 < minutes <= MINUTES_MAX:
            raise ValidationError(
                {"minutes": f"must be above 0 and at most {MINUTES_MAX:,}, or empty: no deadline"}
            )
        deadline_s = 60 * minutes
    if dialog.has_deadline and press.leftover in list(Leftover):
        leftover = Leftover(press.leftover)
    is_confirmed = press.confirm.strip() == dialog.name
    if (dialog.last_of or leftover is Leftover.END) and not is_confirmed:
        what = "no instance is left that serves" if dialog.last_of else "answers may be cut off"
        raise ValidationError({"confirm": f"type {dialog.name}, since {what}"})
    is_number = press.version.isascii() and press.version.isdigit()
    return Terms(
        reason=press.reason,
        deadline_s=deadline_s,
        leftover=leftover,
        version=int(press.version) if is_number else NONE_SEEN,
        is_forced=is_confirmed,
    )


def _act(access: Access, dialog: Dialog, terms: Terms, *, is_node: bool) -> None:
    """Raises: Refused, ValidationError."""
    name, action = dialog.name, dialog.action
    if is_node:
        match action:
            case "cordon":
                services.node_cordon(access=access, node=name, terms=terms)
            case "release":
                services.node_release(access=access, node=name, terms=terms)
            case _:
                services.node_drain(
                    access=access, node=name, terms=terms, is_stopped=action == "stop"
                )
        return
    match action:
        case "cordon":
            services.instance_cordon(access=access, instance=name, terms=terms)
        case "drain":
            services.instance_drain(access=access, instance=name, terms=terms)
        case "stop":
            services.instance_stop(access=access, instance=name, terms=terms)
        case "release":
            services.instance_release(access=access, instance=name, terms=terms)
        case _:
            services.instance_restart(access=access, instance=name, terms=terms, word=action)


def _words(problem: ValidationError) -> str:
    if not hasattr(problem, "error_dict"):
        return " ".join(problem.messages)
    name, words = next(iter(problem.message_dict.items()))
    field = {"deadline_s": "minutes"}.get(name, name)
    return f"{field}: {' '.join(words)}."


def _show(
    request: HttpRequest,
    dialog: Dialog,
    press: Press,
    where: str,
    error: str = "",
    status: int = 200,
    *,
    is_node: bool,
) -> HttpResponse:
    context: dict[str, Any] = {
        "page": "cluster",
        "dialog": dialog,
        "press": press,
        "leftovers": LEFTOVERS,
        "error": error,
        "where": where,
        "is_node": is_node,
        "needs_reason": dialog.action not in ("cordon", "release"),
        "form_url": reverse(
            "web:node-action" if is_node else "web:instance-action",
            args=[dialog.name, dialog.action],
        ),
    }
    if getattr(request, "htmx", False):
        response = render(request, "drains/action.html", context)
        response["Cache-Control"] = "no-store"
    else:
        picture = fleet_watch().observer.look()
        response = render_page(request, "drains/action_page.html", picture, context)
    response.status_code = status
    return response
