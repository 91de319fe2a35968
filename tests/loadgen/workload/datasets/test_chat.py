from itertools import islice
from statistics import median

from loadgen.workload.datasets.chat import Chat
from loadgen.workload.datasets.distributions import Uniform


def test_all_share_the_system_prompt() -> None:
    made = list(islice(Chat().requests(1), 300))
    assert len({request.prompt[0] for request in made}) == 1
    assert made[0].prompt[0][1:3] == (1_000, "system")
    assert len({request.prompt[1] for request in made}) == len({request.session for request in made}) > 30


def test_conversations_have_the_turns_drawn_for_them() -> None:
    made = list(Chat(conversations=300, turns=Uniform(low=2, high=4)).requests(1))
    turns = [sum(request.session == f"chat-{conversation}" for request in made) for conversation in range(300)]
    assert set(turns) == {2, 3, 4}
    assert [request.phase == "first" for request in made] == [request.after is None for request in made]


def test_people_take_their_time_before_all_but_the_first_question() -> None:
    made = list(islice(Chat().requests(1), 2_000))
    assert {request.pause for request in made if request.after is None} == {0.0}
    assert 10 < median(request.pause for request in made if request.after is not None) < 20


def test_a_conversation_ends_before_its_prompt_gets_too_long() -> None:
    made = list(Chat(conversations=50, turns=100, max_prompt_tokens=3_000).requests(1))
    assert max(request.prompt_tokens for request in made) <= 3_000
    assert len(made) < 50 * 20


def test_a_first_prompt_is_sent_however_long_it_is() -> None:
    made = list(Chat(conversations=5, max_prompt_tokens=1).requests(1))
    assert [request.phase for request in made] == ["first"] * 5


def test_there_may_be_no_system_prompt() -> None:
    made = list(Chat(conversations=5, system_tokens=0).requests(1))
    assert {request.prompt[0].role for request in made} == {"user"}
