"""Why the agent refuses or fails, each with the code that travels in an OrderResult or on a terminal.

AgentError
  Refused            nothing was applied; the reason is the caller's to mend
    UserNotAccepted  CommandNotAccepted  CommandNotFound  ScriptNotFound  FolderNotFound
    RootRefused      BadOrder            OrderExpired     OldGeneration   UnknownWorker
  ConfigInvalid      the agent cannot start like this
  PlatformRefused    the platform answered with a code
  PlatformAway       no answer; everything goes on
  StartFailed  RegroupFailed  SourceMissing  ParkFailed  NoRoom
"""

from __future__ import annotations


class AgentError(Exception):
    """Base. ``code`` is stable, ``message`` is a sentence a person can act on."""

    code = "agent_failed"

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.message = message
        if code:
            self.code = code


class ConfigInvalid(AgentError):
    code = "config_invalid"


class PlatformRefused(AgentError):
    """The platform answered and said no. ``status`` is its HTTP status."""

    code = "platform_refused"

    def __init__(self, message: str, code: str, status: int) -> None:
        super().__init__(message, code)
        self.status = status


class PlatformAway(AgentError):
    """No usable answer: time-out, refused connection, 5xx."""

    code = "platform_away"


class Refused(AgentError):
    """Base of refusals: nothing was applied."""

    code = "refused"


class UserNotAccepted(Refused):
    code = "user_not_accepted"


class CommandNotAccepted(Refused):
    code = "command_not_accepted"


class CommandNotFound(Refused):
    code = "command_not_found"


class ScriptNotFound(Refused):
    code = "script_not_found"


class FolderNotFound(Refused):
    code = "working_directory_not_found"


class RootRefused(Refused):
    code = "root_refused"


class BadOrder(Refused):
    code = "bad_order"


class OrderExpired(Refused):
    code = "order_expired"


class OldGeneration(Refused):
    code = "old_generation"


class UnknownWorker(Refused):
    """The order names a rank or worker that is not here (any more)."""

    code = "unknown_worker"


class RankMoved(Refused):
    """The rank that was to be ended as hung has moved since."""

    code = "rank_moved"


class StartFailed(AgentError):
    """The process could not be started."""

    code = "start_failed"


class RegroupFailed(AgentError):
    """A role of a regroup order did not come to its end."""

    code = "regroup_failed"


class SourceMissing(AgentError):
    """What should be served is not here, or does not stand at the step asked for."""

    code = "source_missing"


class ParkFailed(AgentError):
    """The state of a rank could not be written to disk. Nothing was ended."""

    code = "park_failed"


class NoRoom(ParkFailed):
    """The disk, or what this node grants of it, is too small."""

    code = "no_room_to_park"


class AdoptFailed(AgentError):
    """A standby could not become the rank. ``code`` is the worker's or the transfer's own."""

    code = "adopt_failed"
