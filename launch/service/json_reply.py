"""JSON replies, which may hold numpy arrays."""

from typing import Any

import orjson
from starlette.responses import Response


class JsonReply(Response):
    """A reply in JSON; numpy arrays are written without a list in between, NaN as null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body."""
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
