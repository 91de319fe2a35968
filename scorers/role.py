"""Keep pods by what they do of a request."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from scorers.base import Candidate, Column, PlacementRequest, Role


class RoleFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="role"):
    """Keeps the candidates whose role is one of `roles`. O(candidates)."""

    name: ClassVar[str] = "role"
    needs: ClassVar[tuple[Column, ...]] = ("role",)

    roles: Annotated[tuple[Role, ...], msgspec.Meta(min_length=1)] = ("both",)

    def keep(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[bool]:  # noqa: ARG002
        """Return whether each candidate has such a role."""
        return [candidate.role in self.roles for candidate in candidates]
