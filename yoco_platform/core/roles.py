"""The one role table (docs/platform.md). Maker is never checker: that is a rule of services."""

from __future__ import annotations

from django.db.models import TextChoices


class Role(TextChoices):
    VIEWER = "viewer"
    OPERATOR = "operator"
    FINANCE = "finance"
    ADJUDICATOR = "adjudicator"
    AUDITOR = "auditor"
    ADMIN = "admin"
    CUSTOMER_VIEWER = "customer_viewer"
    CUSTOMER_CONTESTER = "customer_contester"
    AGENT = "agent"
    SCHEDULER = "scheduler"


class Permission(TextChoices):
    """What a role may do. Reads are scoped by the viewer's customer and cluster as well."""

    FLEET_READ = "fleet.read"
    JOB_READ = "job.read"
    INCIDENT_READ = "incident.read"
    COVERAGE_READ = "coverage.read"
    CONTRACT_READ = "contract.read"
    STATEMENT_READ = "statement.read"
    LEDGER_EXPORT = "ledger.export"
    AUDIT_READ = "audit.read"
    NODE_OPERATE = "node.operate"
    HEALTH_POLICY_WRITE = "health_policy.write"
    JOB_SUBMIT = "job.submit"
    JOB_OPERATE = "job.operate"
    DRILL_RUN = "drill.run"
    NOTE_WRITE = "note.write"
    CLASSIFICATION_PROPOSE = "classification.propose"
    CLASSIFICATION_CONFIRM = "classification.confirm"
    CONTRACT_WRITE = "contract.write"
    SALES_ORDER_WRITE = "sales_order.write"
    YEAR_CLOSE = "year.close"
    STATEMENT_ISSUE = "statement.issue"
    CONTEST_OPEN = "contest.open"
    CONTEST_RULE = "contest.rule"
    USER_MANAGE = "user.manage"
    TOKEN_MANAGE = "token.manage"  # noqa: S105
    WEBHOOK_MANAGE = "webhook.manage"
    NODE_ENROLL = "node.enroll"
    NODE_REPORT = "node.report"
    CAPACITY_READ = "capacity.read"


P = Permission
_WATCH = frozenset({P.FLEET_READ, P.JOB_READ, P.INCIDENT_READ, P.COVERAGE_READ, P.CAPACITY_READ})
_OWN = frozenset(
    {
        P.JOB_READ,
        P.INCIDENT_READ,
        P.COVERAGE_READ,
        P.CONTRACT_READ,
        P.STATEMENT_READ,
        P.LEDGER_EXPORT,
    }
)
_BOOKS = frozenset({P.CONTRACT_READ, P.STATEMENT_READ, P.LEDGER_EXPORT})

TABLE: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: _WATCH,
    Role.OPERATOR: _WATCH
    | {
        P.NODE_OPERATE,
        P.HEALTH_POLICY_WRITE,
        P.NODE_ENROLL,
        P.JOB_SUBMIT,
        P.JOB_OPERATE,
        P.DRILL_RUN,
        P.NOTE_WRITE,
        P.CLASSIFICATION_PROPOSE,
    },
    Role.FINANCE: _WATCH
    | _BOOKS
    | {
        P.NOTE_WRITE,
        P.CONTRACT_WRITE,
        P.CLASSIFICATION_PROPOSE,
        P.CLASSIFICATION_CONFIRM,
        P.SALES_ORDER_WRITE,
        P.YEAR_CLOSE,
        P.STATEMENT_ISSUE,
    },
    Role.ADJUDICATOR: frozenset({P.JOB_READ, P.INCIDENT_READ, P.COVERAGE_READ, P.CONTRACT_READ})
    | {P.CONTEST_RULE},
    Role.AUDITOR: _WATCH | _BOOKS | {P.AUDIT_READ},
    Role.ADMIN: _WATCH
    | {P.USER_MANAGE, P.TOKEN_MANAGE, P.WEBHOOK_MANAGE, P.NODE_ENROLL, P.AUDIT_READ},
    Role.CUSTOMER_VIEWER: _OWN,
    Role.CUSTOMER_CONTESTER: _OWN | {P.CONTEST_OPEN},
    Role.AGENT: frozenset({P.NODE_REPORT}),
    Role.SCHEDULER: frozenset(
        {P.FLEET_READ, P.CAPACITY_READ, P.JOB_READ, P.INCIDENT_READ, P.JOB_SUBMIT, P.JOB_OPERATE}
    )
    | {P.NODE_OPERATE},
}

SHARED = frozenset({P.NODE_OPERATE, P.HEALTH_POLICY_WRITE, P.NODE_ENROLL})
"""What acts on machines that several customers share: never by whoever is bound to one of them."""
FLEET_WIDE = frozenset({P.HEALTH_POLICY_WRITE})
"""What holds in every cluster: never by whoever is bound to one."""

CUSTOMER_ROLES = frozenset({Role.CUSTOMER_VIEWER, Role.CUSTOMER_CONTESTER})
"""Roles that see one customer's rows only, and must be bound to one."""
TOKEN_ROLES = frozenset({Role.AGENT, Role.SCHEDULER})
"""Roles of machines; no person holds them."""
