"""What this gateway shows pods: the key each was started with, and not what its own clients show it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from config.keys import require_secret, secret
from config.load import ConfigError
from config.schema import PodConfig
from gateway.keys import ANTHROPIC_KEY
from gateway.watch import Files

_AUTHORIZATION = b"authorization"
_KEYS = (_AUTHORIZATION, ANTHROPIC_KEY.encode())


class Credentials:
    """`Authorization` by the pod's URL. `keyed`: clients' keys are this gateway's own, so they stop here."""

    def __init__(self, *, keyed: bool = False) -> None:
        self.reset(keyed=keyed)

    def reset(self, *, keyed: bool) -> None:
        """Forget what pods are shown."""
        self._keyed = keyed
        self._bearers: dict[str, str] = {}

    def use(self, url: str, key: str) -> None:
        """From now on show the pod this key."""
        self._bearers[url] = f"Bearer {key}"

    def of(self, url: str) -> str | None:
        """The `Authorization` of a call to the pod; None: it asks for none."""
        return self._bearers.get(url)

    def apply(self, headers: list[tuple[bytes, bytes]], url: str) -> list[tuple[bytes, bytes]]:
        """A client's headers as those of a request to the pod."""
        bearer = self._bearers.get(url)
        if self._keyed:
            headers = [header for header in headers if header[0].lower() not in _KEYS]
        if bearer is not None:
            headers = [header for header in headers if header[0].lower() != _AUTHORIZATION]
            headers.append((b"Authorization", bearer.encode()))
        return headers


async def load_credentials(credentials: Credentials, pods: Sequence[PodConfig], found: Files) -> None:
    """Read every pod's key, for `credentials` to use when `found` is put in force. Raises ConfigError."""
    for i, pod in enumerate(pods):
        url = pod.url.rstrip("/")
        if pod.api_key_env is not None:
            where = f"$.pods[{i}].api_key_env: {pod.api_key_env}"
            if pod.api_key_env not in os.environ:
                raise ConfigError(f"{where}: not set")
            given = require_secret(os.environ[pod.api_key_env], where)
            found.uses.append(partial(credentials.use, url, given))
        if pod.api_key_file is not None:
            try:
                await found.add(
                    "pod_key", [pod.api_key_file], partial(secret, pod.api_key_file), partial(credentials.use, url)
                )
            except ConfigError as error:
                raise ConfigError(f"$.pods[{i}].api_key_file: {error}") from None
