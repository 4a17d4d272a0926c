"""What the sla app refuses, each with its own code."""

from __future__ import annotations

from yoco_platform.core.errors import Conflict, Invalid, NotFound


class ContractUnknown(NotFound):
    """No such contract, or not one of yours: the same answer."""

    code = "contract_unknown"


class ContractRefused(Invalid):
    """A contract whose dates, zone, currency or scope do not fit."""

    code = "contract_refused"


class NumberTaken(Conflict):
    code = "contract_number_taken"


class ScopeTaken(Conflict):
    """Another contract of this customer covers the same jobs: a failure belongs to one ledger."""

    code = "contract_scope_taken"


class TermsRefused(Invalid):
    """Terms that contradict themselves, or that would change a year that has begun."""

    code = "terms_refused"


class YearUnknown(NotFound):
    """The contract has no such year."""

    code = "year_unknown"


class LedgerBroken(Conflict):
    """Somebody changed the ledger past its triggers; the words say which entry does not hold."""

    code = "ledger_broken"


class CustomerUnknown(NotFound):
    code = "customer_unknown"
