from collections import Counter

from loadgen.workload.datasets.docqa import DocQa

DOCQA_16 = DocQa(conversations=192, document_tokens=48_000, turns=6, live=128)


def test_each_conversation_has_a_document_of_its_own() -> None:
    made = list(DOCQA_16.requests(1))
    assert len(made) == 192 * 6
    documents = {request.session: request.prompt[0] for request in made}
    assert len(set(documents.values())) == 192
    assert {(piece.tokens, piece.role) for piece in documents.values()} == {(48_000, "system")}
    assert all(request.prompt[0] == documents[request.session] for request in made)


def test_prompts_grow_by_an_answer_and_a_question() -> None:
    lengths = [request.prompt_tokens for request in list(DOCQA_16.requests(1))[:6]]
    assert lengths == [48_000 + 256 + 512 * turn for turn in range(6)]


def test_a_conversation_begins_when_one_ends() -> None:
    """docqa-8: 64 of 96 in flight."""
    made = list(DocQa(conversations=96, live=64).requests(1))
    first = [request for request in made if request.phase == "cold"]
    assert [request.after for request in first[:64]] == [None] * 64
    assert [request.after for request in first[64:]] == [6 * conversation + 5 for conversation in range(32)]
    assert Counter(request.phase for request in made) == {"cold": 96, "warm": 96 * 5}


def test_without_a_limit_all_may_begin() -> None:
    made = list(DocQa(conversations=5, turns=2, pause=3.0).requests(1))
    assert [request.after for request in made] == [None, 0, None, 2, None, 4, None, 6, None, 8]
    assert [request.pause for request in made] == [0.0, 3.0] * 5
