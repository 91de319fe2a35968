from typing import Any

from gateway.checks.compare import compare, fleets
from gateway.checks.facts import PodFacts, RankFacts
from gateway.checks.finding import Finding
from gateway.served import Served
from index import BlockStored

TOKENS = list(range(32))


def announced(block_hash: int = 7, size: int = 16) -> BlockStored:
    return BlockStored([block_hash, block_hash + 1], None, TOKENS[: 2 * size], size)


def pod(
    name: str, *events: BlockStored | None, model: str = "m", root: str | None = "/m", **different: Any
) -> PodFacts:
    ranks = [RankFacts(label=name, rank=i, common=event) for i, event in enumerate(events or (announced(),))]
    return PodFacts(**{"url": name, "models": [Served(model, root)], "version": "0.32.0"} | different, ranks=ranks)


def wrong(*pods: PodFacts) -> list[tuple[str, str, str, str]]:
    return [(each.level, each.check, each.pod, each.peer) for each in compare(pods) if each.level != "ok"]


def test_pods_are_compared_with_those_that_serve_the_same() -> None:
    a, b, c = pod("a"), pod("b", model="n"), pod("c")
    silent = PodFacts(url="d", unreachable="gone")
    assert fleets([a, b, silent, c]) == [[a, c], [b]]


def test_pods_that_are_alike_are_told_so() -> None:
    (found,) = compare([pod("a"), pod("b"), pod("c")])
    assert found == Finding("ok", "alike", "a", "it and 2 more agree in model, block size, hashes")


def test_what_was_not_announced_was_not_compared() -> None:
    (found,) = compare([pod("a", None), pod("b")])
    assert found.message == "it and 1 more agree in model"


def test_a_pod_alone_has_nobody_to_pull_from() -> None:
    assert wrong(pod("a")) == [("warn", "peers", "a", "")]


def test_strings_for_the_model_are_compared_where_pods_tell_them() -> None:
    assert wrong(pod("a"), pod("b", root="/n")) == [("FAIL", "model", "b", "a")]
    assert wrong(pod("a"), pod("b", root=None)) == []
    assert wrong(pod("a", root=None), pod("b")) == []


def test_hashes_and_block_sizes_are_compared_once_for_each_pair() -> None:
    assert wrong(pod("a"), pod("b", announced(8))) == [("FAIL", "hash", "a", "b")]
    assert wrong(pod("a"), pod("b", announced(8), announced(8))) == [("FAIL", "hash", "a", "b")]
    assert wrong(pod("a"), pod("b", announced(size=8))) == [("FAIL", "block-size", "a", "b")]


def test_releases_that_differ_cannot_pull_from_each_other_and_patches_may() -> None:
    assert wrong(pod("a"), pod("b", version="0.33.0")) == [("FAIL", "version", "b", "a")]
    assert wrong(pod("a"), pod("b", version="0.32.1")) == [("note", "version", "b", "a")]
    assert wrong(pod("a"), pod("b", version=None)) == []
    assert wrong(pod("a", version=None), pod("b")) == []
    assert [found.check for found in compare([pod("a"), pod("b", version="0.32.1")])] == ["version", "alike"]


def test_identities_are_compared_key_by_key_among_those_that_have_one() -> None:
    one, other = {"dtype": "bfloat16", "tp": 1, "sp": None}, {"dtype": "float16", "pp": 2, "sp": None}
    found = [
        each for each in compare([pod("a", identity=one), pod("b"), pod("c", identity=other)]) if each.level != "ok"
    ]
    assert [(each.level, each.check, each.pod, each.peer, each.message.split(":")[0]) for each in found] == [
        ("FAIL", "identity", "c", "a", "dtype is 'float16' here, 'bfloat16' there"),
        ("note", "identity", "c", "a", "only c tells its pp"),
        ("note", "identity", "c", "a", "only a tells its tp"),
    ]


def test_identities_that_agree_are_counted() -> None:
    (found,) = compare([pod("a", identity={"tp": 1}), pod("b", identity={"tp": 1})])
    assert found.message.endswith("hashes, 1 more of /kv/identity")
