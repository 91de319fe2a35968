import hashlib
import pickle

import pytest

from loadgen.hashing import BlockHasher, HashAlgo, as_int, cbor


@pytest.mark.parametrize(
    ("algo", "none"),
    [
        ("sha256", "1973e23848344dc43a988a9b478663803cfffe1243480253f9a3cf004b14aa7c"),
        ("sha256_cbor", "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"),
    ],
)
def test_the_root_of_seed_zero_is_the_published_one(algo: HashAlgo, none: str) -> None:
    assert BlockHasher(16, seed="0", algo=algo).none.hex() == none


@pytest.mark.parametrize(
    ("algo", "plain", "salted"),
    [
        (
            "sha256",
            "0d16110ebeafb441724a6df36b12a476e2238118ce85dba4cde680c98b1e895a",
            "a3890a58a13d71286dc4b1401618643f3f3402c916463f64cab315b059b3574f",
        ),
        (
            "sha256_cbor",
            "0bd7b58f2ebe08691f697f880e09dffc2d55c4f30d92bec1101e1ec2751812af",
            "548cb4014947a5914d1ecfb48719a23f1807c1ba149f7508ca7ee51ebc063871",
        ),
    ],
)
def test_a_block_hashes_as_in_vllm(algo: HashAlgo, plain: str, salted: str) -> None:
    hasher = BlockHasher(4, seed="0", algo=algo)
    without: list[bytes] = []
    hasher.extend(without, [1, 2, 300, 70000])
    with_salt: list[bytes] = []
    hasher.extend(with_salt, [1, 2, 300, 70000], lambda _: (("cache_salt", "s"),))
    assert [without[0].hex(), with_salt[0].hex()] == [plain, salted]


def test_blocks_chain_and_a_partial_block_has_no_hash() -> None:
    hasher = BlockHasher(2, seed="0")
    hashes: list[bytes] = []
    hasher.extend(hashes, [1, 2, 3, 4, 5])
    assert len(hashes) == 2
    assert hashes[1] == hashlib.sha256(pickle.dumps((hashes[0], (3, 4), None), protocol=5)).digest()


def test_extending_adds_only_the_missing_blocks() -> None:
    hasher = BlockHasher(2, seed="0")
    grown: list[bytes] = []
    for length in range(7):
        hasher.extend(grown, list(range(length)))
    at_once: list[bytes] = []
    hasher.extend(at_once, list(range(6)))
    assert grown == at_once


def test_no_seed_is_vllms_default_seed() -> None:
    assert BlockHasher(16, seed=None).none == BlockHasher(16, seed="vllm-none-hash").none
    assert BlockHasher(16, seed=None).none != BlockHasher(16, seed="0").none


def test_a_published_int_is_the_digests_tail() -> None:
    assert as_int(bytes(24) + bytes.fromhex("ff00000000000001")) == 0xFF00000000000001


def test_cbor_uses_the_shortest_head() -> None:
    values = [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32]
    heads = ["00", "17", "1818", "18ff", "190100", "19ffff", "1a00010000", "1affffffff", "1b0000000100000000"]
    assert [cbor(value).hex() for value in values] == heads


def test_cbor_refuses_what_vllm_never_hashes() -> None:
    with pytest.raises(TypeError, match="float"):
        cbor(1.5)
