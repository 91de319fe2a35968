"""What a pod serves, as its /v1/models has it: pure."""

from msgspec import Struct


class Served(Struct):
    """A model. `root` is what the pod was started with; `parent` is an adapter's model."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
