"""What every section of the configuration has in common: that it is strict, and the ranges of its values."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Port = Annotated[int, Meta(ge=1, le=65535)]
ListenPort = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]  # event loops cannot wait for YAML's .inf
SecondsOrNone = Annotated[float, Meta(ge=0, le=86_400)]
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[int, Meta(ge=1)]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section: frozen, and a key that it does not know is refused."""
