"""Whose request is it: from the key that a client presents to an `ApiKey`.

What is presented is hashed, and the digest looked up. How long that takes depends on digests only, and who does not
know a key cannot steer towards its digest: nothing of a key can be learnt from time, and nobody is compared first.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest

from aiohttp import hdrs
from multidict import CIMultiDictProxy

from config.keys import ApiKey
from gateway.errors import Unauthorized

ANTHROPIC_KEY = "x-api-key"
_SCHEME = "bearer "
_NO_DIGEST = bytes(32)


class Keys:
    """The keys in force."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, ApiKey] = {}

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """From now on these. Requests under way go on."""
        self._by_digest = {key.digest: key for key in keys}

    def of(self, headers: CIMultiDictProxy[str]) -> ApiKey:
        """Who sends these headers. O(1). Raises Unauthorized."""
        presented = _presented(headers)
        if not presented:
            raise Unauthorized(
                "No API key was given: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`.",
                code="invalid_api_key",
                refused="no_key",
            )
        digest = sha256(presented.encode("utf-8", "surrogateescape")).digest()
        key = self._by_digest.get(digest)
        if not compare_digest(digest, _NO_DIGEST if key is None else key.digest) or key is None:
            raise Unauthorized("The API key is not known here.", code="invalid_api_key", refused="unknown_key")
        return key


def _presented(headers: CIMultiDictProxy[str]) -> str:
    authorization = headers.get(hdrs.AUTHORIZATION, "")
    if authorization[: len(_SCHEME)].lower() == _SCHEME:
        return authorization[len(_SCHEME) :].strip()
    return headers.get(ANTHROPIC_KEY, "").strip()
