"""What tokens cost. A price counts from its moment on; a request costs by the one at its end.

A model without a price is free. Amounts have no currency: it is that of whoever sets the prices.
"""

import bisect
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from django.db import transaction

from controlplane.audit.services import audit_write
from controlplane.following import Follower
from controlplane.tenants.access import Access, Role
from controlplane.usage.models import ModelPrice

ROWS_MAX: Final = 10_000
"""Newest prices that a process keeps in memory, about 2 MB."""
COST_STEP: Final = Decimal("0.00000001")
"""What the ledger's column holds; a request's cost is rounded to it once."""
_MILLION: Final = Decimal(1_000_000)
PRICE_FIELDS: Final = ("prompt_per_million", "cached_per_million", "output_per_million")


@dataclass(frozen=True, slots=True)
class Price:
    """Of a million tokens each."""

    prompt_per_million: Decimal
    cached_per_million: Decimal
    output_per_million: Decimal

    def cost(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> Decimal:
        """Returns what a request costs; `prompt_tokens` includes the cached ones."""
        cached = min(cached_tokens, prompt_tokens)
        parts = (
            self.prompt_per_million * (prompt_tokens - cached)
            + self.cached_per_million * cached
            + self.output_per_million * output_tokens
        )
        return (parts / _MILLION).quantize(COST_STEP)


FREE: Final = Price(Decimal(0), Decimal(0), Decimal(0))


class PriceList:
    """Prices of models over time. Immutable."""

    def __init__(self, rows: Iterable[ModelPrice] = ()) -> None:
        self._begins: dict[str, list[datetime]] = {}
        self._prices: dict[str, list[Price]] = {}
        for row in sorted(rows, key=lambda row: row.valid_from):
            self._begins.setdefault(row.model, []).append(row.valid_from)
            self._prices.setdefault(row.model, []).append(_price_of(row))

    def at(self, model: str, at: datetime) -> Price:
        """Returns the newest price that has begun at the moment; FREE without one."""
        found = bisect.bisect_right(self._begins.get(model, []), at)
        return self._prices[model][found - 1] if found else FREE


def prices_of(models: Iterable[str]) -> PriceList:
    """Returns all prices of some models. One query."""
    return PriceList(ModelPrice.objects.filter(model__in=sorted(set(models)))[:ROWS_MAX])


def price_at(*, model: str, at: datetime) -> Price:
    """Returns the price of a model at a moment. One query."""
    rows = ModelPrice.objects.filter(model=model, valid_from__lte=at).order_by("-valid_from")
    row = rows.first()
    return FREE if row is None else _price_of(row)


class PriceBook(Follower):
    """All prices in memory. While the database is away the last known ones count, those that begin
    meanwhile too."""

    what = "prices"

    def __init__(self) -> None:
        super().__init__()
        self._list = PriceList()

    def price(self, model: str, at: datetime | None = None) -> Price:
        """Returns a model's price at a moment, now by default. Never waits."""
        return self._list.at(model, at or datetime.now(UTC))

    def read(self) -> None:
        """One query. Raises: DatabaseError."""
        self._list = PriceList(ModelPrice.objects.order_by("-valid_from")[:ROWS_MAX])


@functools.cache
def price_book() -> PriceBook:
    """Returns this process's one; whoever serves requests starts it."""
    return PriceBook()


@transaction.atomic
def price_set(
    *,
    access: Access,
    model: str,
    valid_from: datetime,
    prompt_per_million: Decimal,
    cached_per_million: Decimal,
    output_per_million: Decimal,
    reason: str = "",
) -> ModelPrice:
    """Adds a price, or replaces the one of the same model and moment.

    What has been billed stays billed: only requests that end from now on are counted by it. Needs
    the platform's owner. Raises: NotVisible, NotAllowed; ValidationError naming the field.
    """
    access.require(Role.OWNER)
    values = dict(
        zip(PRICE_FIELDS, (prompt_per_million, cached_per_million, output_per_million), strict=True)
    )
    rows = ModelPrice.objects.select_for_update()
    row = rows.filter(model=model, valid_from=valid_from).first()
    before = None if row is None else _facts(row)
    row = row or ModelPrice(model=model, valid_from=valid_from)
    for name, value in values.items():
        setattr(row, name, value)
    row.created_by = access.who
    row.full_clean()
    row.save()
    audit_write(
        access=access, action="price_set", object=str(row)[:200], reason=reason,
        before=before, after=_facts(row),
    )  # fmt: skip
    return row


def _facts(row: ModelPrice) -> Mapping[str, str]:
    prices = {name: format(getattr(row, name), "f") for name in PRICE_FIELDS}
    return {"model": row.model, "valid_from": row.valid_from.isoformat(), **prices}


def _price_of(row: ModelPrice) -> Price:
    return Price(row.prompt_per_million, row.cached_per_million, row.output_per_million)
