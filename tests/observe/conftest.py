import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes a minute runs where it is asked for."""
    if "observe" in config.getoption("markexpr"):
        return
    for item in items:
        if item.get_closest_marker("observe") is not None:
            item.add_marker(pytest.mark.skip(reason="takes a minute: make observe-test"))
