from scorers import Candidate, PlacementRequest, SessionAffinity

HERE = Candidate(pod="a", rank=1, session=True)
THERE = Candidate(pod="a", rank=0)


def test_the_rank_that_the_session_was_on_scores_1(request_of_1000: PlacementRequest) -> None:
    assert SessionAffinity().score(request_of_1000, [THERE, HERE, THERE]) == [0, 1, 0]


def test_a_session_that_is_on_no_candidate_leaves_all_alike(request_of_1000: PlacementRequest) -> None:
    assert SessionAffinity().score(request_of_1000, [THERE, THERE]) == [0.5, 0.5]


def test_of_no_candidates_there_are_no_scores(request_of_1000: PlacementRequest) -> None:
    assert SessionAffinity().score(request_of_1000, []) == []
