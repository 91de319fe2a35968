import pytest

from config.addresses import http_address, join_address, split_address, tcp_address


def test_the_star_of_a_bound_endpoint_is_kept() -> None:
    assert tcp_address("tcp://*:5557") == ("*", 5557)


@pytest.mark.parametrize("host", ["fd00::1", "fe80::1%eth0"])
def test_an_ipv6_host_comes_without_its_brackets(host: str) -> None:
    assert split_address(f"[{host}]:5710") == (host, 5710)
    assert tcp_address(f"tcp://[{host}]:5557") == (host, 5557)
    assert join_address(host, 5710) == f"[{host}]:5710"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1:8000/", "10.0.0.1:8000"),
        ("http://pod-1.vllm.svc", "pod-1.vllm.svc:80"),
        ("https://pod-1", "pod-1:443"),
        ("HTTPS://Pod-1:8443", "pod-1:8443"),
        ("http://[FD00::1]:8000", "[fd00::1]:8000"),
        ("http://[fd00::1]", "[fd00::1]:80"),
    ],
)
def test_a_pod_is_named_by_host_and_port(url: str, name: str) -> None:
    assert http_address(url) == name
