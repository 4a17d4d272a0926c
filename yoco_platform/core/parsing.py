"""Bodies of the REST door: JSON that every later step can hold, store and say back."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser


class JsonParser(JSONParser):
    """DRF's, which knows neither nesting beyond Python's stack nor halves of surrogate pairs."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:  # Any: JSON
        raw = stream.read()
        try:
            data = super().parse(io.BytesIO(raw), media_type, parser_context)
            if b"\\u" in raw:
                # Only an escape can make half a pair: raw bytes were decoded strictly.
                json.dumps(data, ensure_ascii=False).encode()
        except RecursionError:
            raise ParseError("JSON parse error - nested too deeply") from None
        except UnicodeEncodeError:
            raise ParseError(
                "JSON parse error - half of a surrogate pair is no character"
            ) from None
        return data
