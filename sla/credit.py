"""The credit of a short year: its base, one rounding on the total, the cap. Whole minor units only. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from .states import CreditBase, Rounding

OrderKind = Literal["subscription", "renewal", "expansion"]


@dataclass(frozen=True, kw_only=True)
class SalesOrder:
    """What the customer signed. ``year``: whose fees a subscription is."""

    id: str
    kind: OrderKind
    signed: datetime
    amount_minor: int
    currency: str
    year: int | None


@dataclass(frozen=True, kw_only=True)
class CreditRules:
    """What of a contract's terms decides the amount. ``cap_minor``: None without a cap."""

    rate_bp: int
    base: str
    cap_minor: int | None
    rounding: str
    currency: str


@dataclass(frozen=True, kw_only=True)
class Credit:
    """``base_minor`` and ``amount_minor`` are None while unpriced: the order that is its base is not
    signed yet."""

    basis_points: int
    base_minor: int | None
    amount_minor: int | None
    currency: str
    state: Literal["unpriced", "priced"]


def credit_amount(base_minor: int, rules: CreditRules) -> int:
    """The rate of the base, rounded once, never above the cap."""
    product = base_minor * rules.rate_bp
    if rules.rounding == Rounding.UP:
        amount = -(-product // 10_000)
    else:
        amount = (product + 5_000) // 10_000
    return amount if rules.cap_minor is None else min(amount, rules.cap_minor)


def orders_once(
    orders: Iterable[SalesOrder], as_of: datetime
) -> tuple[list[SalesOrder], list[str]]:
    """Those signed by ``as_of``, each once; and the ids that stand for different ones, in words."""
    found = dict.fromkeys(order for order in orders if order.signed <= as_of)
    ids = Counter(order.id for order in found)
    problems = [
        f"orders: {name} is there with different contents"
        for name, count in sorted(ids.items())
        if count > 1
    ]
    return list(found), problems


def credit_priced(
    orders: Sequence[SalesOrder], rules: CreditRules, *, year: int, ended: datetime
) -> tuple[Credit, list[str]]:
    """The credit for year ``year``, which ended at ``ended``, from the ``orders`` known; and what keeps its
    base from being told, in words."""
    if rules.base == CreditBase.FEES_OF_FAILED_YEAR:
        base, problems = _fees(orders, rules, year)
    else:
        base, problems = _next_order(orders, rules, ended)
    credit = Credit(
        basis_points=rules.rate_bp,
        base_minor=base,
        amount_minor=None if base is None else credit_amount(base, rules),
        currency=rules.currency,
        state="unpriced" if base is None else "priced",
    )
    return credit, problems


def _fees(
    orders: Sequence[SalesOrder], rules: CreditRules, year: int
) -> tuple[int | None, list[str]]:
    fees = [order for order in orders if order.kind == "subscription" and order.year == year]
    foreign = sorted(order.id for order in fees if order.currency != rules.currency)
    problems = [
        f"orders: {one} is no {rules.currency}, and its fees are the base of the credit"
        for one in foreign
    ]
    if not fees:
        # Nobody works for nothing by forgetting a line: no fees on file are no base of 0.
        problems = [
            f"orders: no subscription of year {year} is there, and its fees are the base of the credit"
        ]
        return None, problems
    return sum(order.amount_minor for order in fees), problems


def _next_order(
    orders: Sequence[SalesOrder], rules: CreditRules, ended: datetime
) -> tuple[int | None, list[str]]:
    kinds = {"renewal"}
    if rules.base == CreditBase.FIRST_OF_RENEWAL_OR_EXPANSION:
        kinds.add("expansion")
    fitting = [
        order
        for order in orders
        if order.kind in kinds and order.signed >= ended and order.currency == rules.currency
    ]
    if not fitting:
        return None, []
    signed = min(order.signed for order in fitting)
    first = sorted((o for o in fitting if o.signed == signed), key=lambda order: order.id)
    problems = []
    if len({order.amount_minor for order in first}) > 1:
        named = " and ".join(order.id for order in first)
        problems = [
            f"orders: {named} were signed at the same instant, and no rule says which is first"
        ]
    return first[0].amount_minor, problems
