"""What a stream says, by its request's id: a chain of hashes, so that its reader knows every byte beforehand."""

import hashlib
from collections.abc import Iterator

import msgspec

MODEL = "load-model"
DONE = b"data: [DONE]\n\n"


class Asked(msgspec.Struct, kw_only=True):
    """A completion's body: so many events, one every `pace` seconds, 0: as fast as they are taken; padded to `fill`."""

    max_tokens: int
    pace: float
    fill: int = 0
    model: str = MODEL
    stream: bool = True
    prompt: tuple[int, ...] = (1, 2, 3)


def events(identity: str, count: int, *, fill: int = 0) -> Iterator[bytes]:
    """SSE events, each with the hash of the one before, without the end marker."""
    link = identity.encode()
    for _ in range(count):
        link = hashlib.sha256(link).digest()
        text = link.hex()
        text *= 1 + fill // len(text)
        yield b'data: {"id":"%b","choices":[{"index":0,"text":"%b"}]}\n\n' % (identity.encode(), text.encode())


def whole(identity: str, count: int) -> bytes:
    """The body of a stream that ended as it should."""
    return b"".join((*events(identity, count), DONE))
