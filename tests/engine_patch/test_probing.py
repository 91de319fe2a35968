import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from engine_patch.probing import PortProbes


@contextmanager
def listening() -> Iterator[str]:
    """A port whose owner accepts nothing, as a stopped process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def free() -> str:
    with listening() as peer:
        return peer


def found_refusing(peers: set[str], seconds: float = 3.0) -> set[str]:
    """What is found within the time; the probes are closed at the end."""
    probes, found, until = PortProbes(), set[str](), time.monotonic() + seconds
    while time.monotonic() < until and found != peers:
        found |= probes.refusing(peers, time.monotonic())
        time.sleep(0.01)
    probes.close()
    return found


def test_a_port_without_a_process_refuses() -> None:
    peer = free()
    assert found_refusing({peer}) == {peer}


def test_a_process_that_does_not_answer_is_there_all_the_same() -> None:
    with listening() as peer:
        assert found_refusing({peer}, 0.3) == set()


def test_a_peer_by_name_is_not_looked_up() -> None:
    assert found_refusing({"localhost:1", "no port", "127.0.0.1:x"}, 0.1) == set()


def test_a_peer_that_is_of_interest_no_more_is_asked_no_more() -> None:
    probes = PortProbes()
    with listening() as peer:
        probes.refusing({peer}, 0)
        assert probes.refusing(set(), 1) == set()
        probes.close()


def test_a_peer_is_asked_again_only_after_a_while() -> None:
    probes = PortProbes()
    with listening() as peer:
        for moment in (0.0, 0.1, 0.2):
            probes.refusing({peer}, moment)
    until = time.monotonic() + 1
    found: set[str] = set()
    while time.monotonic() < until:
        found |= probes.refusing({peer}, 0.5)
        time.sleep(0.05)
    assert found == set()
    while not found:
        found |= probes.refusing({peer}, 2.0)
    probes.close()
