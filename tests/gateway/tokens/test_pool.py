"""What is short does not wait for what is long."""

import time
from pathlib import Path
from threading import Thread

import pytest

from gateway.tokens.local import LocalTokenizer
from gateway.tokens.model_files import find_model
from tests.gateway.tokens.models import lay

LONG = "The quick brown fox jumps over the lazy dog. " * 5_000
SHORT_S = 0.1  # for what takes some microseconds; the long ones take seconds


@pytest.fixture
def local(tmp_path: Path) -> LocalTokenizer:
    lay(tmp_path)
    return LocalTokenizer(find_model(str(tmp_path)))


def test_short_texts_are_not_kept_waiting_by_long_ones(local: LocalTokenizer) -> None:
    texts = [f"{number} {LONG}" for number in range(12)]
    began = time.perf_counter()
    local._encode(texts[:1])
    expected = time.perf_counter() - began
    long = Thread(target=lambda: local._encode(texts))
    long.start()
    waited = []
    try:
        while long.is_alive():
            began = time.perf_counter()
            local._encode(["a", "short", "turn"])
            waited.append(time.perf_counter() - began)
            time.sleep(0.001)
    finally:
        long.join()
    assert len(waited) >= 5
    assert sorted(waited)[len(waited) // 2] < SHORT_S
    assert max(waited) < max(SHORT_S, 4 * expected)
