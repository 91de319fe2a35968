"""How an exchange fails, as results name it."""

from typing import Final

# Not the endpoint's doing: the load ended, by itself or by its user, before the answer did.
UNFINISHED: Final = "unfinished"


class Failure(Exception):
    """No whole answer. `kind` is one word for counting, the message is for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Refused(Failure):
    """There is no connection to be had."""

    def __init__(self, message: str) -> None:
        super().__init__("refused", message)


class Disconnected(Failure):
    """The connection ended before the answer did."""

    def __init__(self, message: str) -> None:
        super().__init__("disconnected", message)


class Unreadable(Failure):
    """What arrived is not what the protocol allows."""

    def __init__(self, message: str) -> None:
        super().__init__("unreadable", message)
