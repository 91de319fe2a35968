"""What a piece's tokens are for a client: words, or token ids.

Both are endless and drawn from the piece's seed alone, so a shorter piece of a seed is the beginning of a longer one,
in every process. A word is a space and a common English word of at most five letters, each of which is one token for
the tokenizers of GPT-2, Llama 2 and 3 and OpenAI's cl100k and o200k: a piece is as long in a model's tokens as it says,
and its text 4.9 bytes a token.
"""

from collections import OrderedDict
from collections.abc import Callable
from random import Random
from typing import Final, Generic, TypeVar

_Made = TypeVar("_Made")

_LIST: Final = """
a about above act add after again age ago air all also am an and any are area arm art as ask at away baby back ball bank
base be bed best big bird black blood blue board boat body book both box boy bring brown build but buy by call came can
car care carry case chair child city clear close coat cold come cook cost could cover cut dark day deep did do dog done
door down draw dream drive dry early earth east easy eat edge eight else end even ever every eye face fact fall far farm
fast feel few field fight fill find fire first fish five floor food foot for form four free from front full game gave
girl give glass go gold gone good got great green group grow had hair half hand happy hard has hat have he head hear
heart heavy held help her here high hill him his hold home horse hot hour house how human ice idea if in into is it job
join jump just keep kind king knew know land large last late law lay lead learn leave left leg less let life light like
line list live long look lost lot love low made main make man many map mark may me mean meet men might mile milk mind
miss money month moon more most move much music must my name near need never new next night nine no north nose not note
now of off often oil old on once one only open or order other our out over own page paper part party past pay piece
place plan plant play point poor power press price pull push put queen quick quiet rain ran reach read ready real red
rest rich ride right ring river road rock room round rule run said sail salt same sand saw say sea seat see seem sell
send sent set seven she ship shop short show side sing sit six size skin sky sleep slow small snow so soft some son song
soon sound south space speak stand star start state stay step still stone stop store story such sun sure table take talk
tall teach tell ten test than that the their them then there these they thing think this those three time to today told
too took top town train tree true try turn two under until up upon us use very visit voice wait walk wall want war warm
was watch water way we wear week well went were west what wheel when where which white who whole why wide wife will wind
wish with woman wood word work world would write year yes yet you young your
"""
WORDS: Final = tuple(" " + word for word in _LIST.split())


def words(seed: int, tokens: int) -> str:
    """The first `tokens` words of the text, a space before each. O(tokens), some 70 nanoseconds a word."""
    return "".join(Random(seed).choices(WORDS, k=tokens))


def ids(seed: int, tokens: int, vocabulary: range) -> list[int]:
    """The first `tokens` ids of the text, each of `vocabulary`, which holds what a model takes for ordinary tokens."""
    return Random(seed).choices(vocabulary, k=tokens)


class PieceCache(Generic[_Made]):
    """`make(seed, tokens)`, whose results for at most `limit_tokens` tokens are kept: those used last.

    A hit costs O(1). What alone is longer than the limit is made anew each time. Words of 4 million tokens take
    20 MB, ids 160 MB.
    """

    def __init__(self, make: Callable[[int, int], _Made], limit_tokens: int = 4_000_000) -> None:
        self._make = make
        self._limit = limit_tokens
        self._made: OrderedDict[tuple[int, int], _Made] = OrderedDict()
        self._tokens = 0

    def __call__(self, seed: int, tokens: int) -> _Made:
        """What `make` makes of the first `tokens` tokens of the text `seed`. Not to be changed, it is made once."""
        key = (seed, tokens)
        if key in self._made:
            self._made.move_to_end(key)
            return self._made[key]
        made = self._make(seed, tokens)
        if tokens <= self._limit:
            self._made[key] = made
            self._tokens += tokens
            while self._tokens > self._limit:
                (_, evicted), _ = self._made.popitem(last=False)
                self._tokens -= evicted
        return made
