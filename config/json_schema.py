"""The configuration's JSON schema, for editors."""

from typing import Any

import msgspec

from config.out_of_tree import PATH
from config.schema import Config


def json_schema() -> dict[str, Any]:
    """What `load` takes. That a scorer's `type` may be any `module:Class` is what the structs do not say."""
    schema = msgspec.json.schema(Config)
    scorer = schema["$defs"]["OutOfTree"]["properties"]
    scorer["type"] = {"type": "string", "pattern": f"^{PATH}$"}
    del scorer["path"]
    del schema["$defs"]["Placement"]["properties"]["scorers"]["items"]["discriminator"]
    return schema
