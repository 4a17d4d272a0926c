"""How the OpenAPI schema names things: our token, and serializers by app and view."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema


class Schema(AutoSchema):
    """Names a component after its app and class, so that two apps may both have an ``Input``."""

    def get_serializer_name(self, serializer: Any, direction: str) -> str:
        kind = type(serializer)
        app = kind.__module__.rsplit("yoco_platform.")[-1].partition(".")[0]
        return app.title() + "".join(
            part.removesuffix("Api") for part in kind.__qualname__.split(".")
        )


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the token looks in the OpenAPI schema."""

    target_class = "yoco_platform.core.tokens.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}
