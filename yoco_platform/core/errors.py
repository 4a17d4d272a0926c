"""Everything that can be refused, as one tree with one exit (core.api.problem).

DomainError
 ├─ Malformed         400  the request cannot be read at all
 ├─ Unauthenticated   401  nobody we know
 ├─ Forbidden         403  known, but may not: PersonNeeded
 ├─ NotFound          404  not there, or not yours: the same answer
 ├─ Conflict          409  cannot be done in the present state
 ├─ TooLarge          413  beyond a stated limit
 ├─ Invalid           422  readable, but wrong: UnknownField, InvalidField
 ├─ TooMany           429  beyond a stated rate
 └─ Unavailable       503  try again later
"""

from __future__ import annotations

from typing import ClassVar


class DomainError(Exception):
    """Refused, with a code for machines, a sentence for people and details for both."""

    code: ClassVar[str] = "refused"
    status: ClassVar[int] = 400

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class Malformed(DomainError):
    code = "malformed"
    status = 400


class Unauthenticated(DomainError):
    code = "unauthenticated"
    status = 401


class Forbidden(DomainError):
    code = "forbidden"
    status = 403


class PersonNeeded(Forbidden):
    """What cannot be undone: a token may not do it, whatever its role."""

    code = "person_needed"


class NotFound(DomainError):
    code = "not_found"
    status = 404


class Conflict(DomainError):
    code = "conflict"
    status = 409


class TooLarge(DomainError):
    code = "too_large"
    status = 413


class Invalid(DomainError):
    code = "invalid"
    status = 422


class UnknownField(Invalid):
    """A field that nobody reads would be a wish that nobody heard."""

    code = "unknown_field"


class InvalidField(Invalid):
    code = "invalid_field"


class TooMany(DomainError):
    code = "too_many"
    status = 429


class Unavailable(DomainError):
    code = "unavailable"
    status = 503
