"""What the nodes app refuses, each with its own code."""

from __future__ import annotations

from yoco_platform.core.errors import Conflict, Invalid, NotFound, Unauthenticated


class TokenRefused(Unauthenticated):
    """No such token, or one that was revoked."""

    code = "token_refused"


class TokenExpired(TokenRefused):
    code = "token_expired"


class TokenUsed(TokenRefused):
    """An enrollment token opens the door once."""

    code = "token_used"


class NodeUnknown(NotFound):
    """No such node, or not one of yours: the same answer."""

    code = "node_unknown"


class NodeRetired(Conflict):
    """The name belongs to a machine that was retired for good."""

    code = "node_retired"


class NodeHeard(Conflict):
    """The name belongs to a node whose agent speaks: no other may take its place."""

    code = "node_heard"


class StepRefused(Conflict):
    """The state does not lead there, or somebody else moved the node first."""

    code = "step_refused"


class InventoryRefused(Invalid):
    """An inventory that contradicts itself or does not fit."""

    code = "inventory_refused"


class PolicyRefused(Invalid):
    """A policy whose figures contradict one another."""

    code = "policy_refused"


class ReasonMissing(Invalid):
    """A person's action needs a reason in words."""

    code = "reason_missing"


class BreakerUnknown(NotFound):
    code = "breaker_unknown"


class ClusterUnknown(NotFound):
    """No such cluster, or not one of yours."""

    code = "cluster_unknown"


class LifetimeRefused(Invalid):
    """An enrollment token lives from a second to thirty days."""

    code = "lifetime_refused"
