# ruff: noqa: E501, S106  # split patterns are one line; an unknown token is no password
"""Small tokenizers of every build that models come with, trained here."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TURNS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 1234567 o'clock, isn't it?",
    "    def f(x):\n\treturn x + 1\n\n\n# done   \n",
    "\u00dcber \u00e9t\u00e9 na\u00efve e\u0301 \u4f60\u597d\u4e16\u754c \u3053\u3093\u306b\u3061\u306f \U0001f469\u200d\U0001f4bb",
    'user assistant system tool <think> </think> {"name": "f", "arguments": {}}',
    "f <| g <| h <| i",
] * 4
_LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _special(*contents: str, **flags: bool) -> list[AddedToken]:
    return [
        AddedToken(content, special=True, normalized=flags.get("normalized", False), **_strips(flags))
        for content in contents
    ]


def _strips(flags: dict[str, bool]) -> dict[str, bool]:
    return {name: on for name, on in flags.items() if name != "normalized"}


def _byte_level(pre: pre_tokenizers.PreTokenizer, specials: list[AddedToken], **model: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_tokens(specials)
    return tokenizer


def gpt_2() -> Tokenizer:
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), _special(*TURNS))


def prefixed() -> Tokenizer:
    """A space before every piece, as RoBERTa has it, and a mask that takes the spaces before it."""
    return _byte_level(
        pre_tokenizers.ByteLevel(add_prefix_space=True), [*_special(*TURNS), *_special("<mask>", lstrip=True)]
    )


def llama_3() -> Tokenizer:
    pre = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA_3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer = _byte_level(pre, _special("<|begin_of_text|>", *TURNS), ignore_merges=True)
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def qwen() -> Tokenizer:
    pre = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer = _byte_level(
        pre, [*_special(*TURNS), AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)]
    )
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def deepseek() -> Tokenizer:
    """Special tokens that are normalized, by an empty normalizer; digits apart."""
    pre = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    specials = [*_special(*TURNS, normalized=True), AddedToken("<|tool|>", normalized=False), AddedToken("<think>")]
    tokenizer = _byte_level(pre, specials)
    tokenizer.normalizer = normalizers.Sequence([])
    return tokenizer


def phi() -> Tokenizer:
    """Special tokens that take the spaces behind them, and ones that contain or begin with one another."""
    overlapping = [AddedToken(content, normalized=False) for content in ("<|im", "x<|im_end|>", "<|im_end|>\n", "  ")]
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), [*_special(*TURNS, rstrip=True), *overlapping])


def _spaced_bpe(specials: list[AddedToken]) -> Tokenizer:
    """A BPE over text whose spaces are \u2581, with a token per byte for what it does not know."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, show_progress=False, max_token_length=12))
    described = json.loads(trained.to_str())
    vocabulary = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    for token in described["model"]["vocab"]:
        vocabulary.setdefault(token, len(vocabulary))
    described["model"] |= {"vocab": vocabulary, "byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    tokenizer = Tokenizer.from_str(json.dumps(described))
    tokenizer.add_tokens(specials or _special("<s>", "</s>", *TURNS))
    return tokenizer


def llama_2() -> Tokenizer:
    tokenizer = _spaced_bpe([])
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    return tokenizer


def _metaspace(scheme: str) -> Tokenizer:
    tokenizer = _spaced_bpe([])
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return tokenizer


def mistral() -> Tokenizer:
    return _metaspace("first")


def metaspace_always() -> Tokenizer:
    return _metaspace("always")


def gemma() -> Tokenizer:
    tokenizer = _spaced_bpe([*_special("<bos>", *TURNS), *(AddedToken("\n" * n, normalized=False) for n in (1, 2, 3))])
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(_special("</s>", *TURNS))
    end = tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", end)])
    return tokenizer


def bert() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(_special(*TURNS))
    cls, sep = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    return tokenizer


SAFE: dict[str, Callable[[], Tokenizer]] = {
    made.__name__: made
    for made in (
        gpt_2,
        prefixed,
        llama_3,
        qwen,
        deepseek,
        phi,
        llama_2,
        mistral,
        metaspace_always,
        gemma,
        unigram,
        bert,
    )
}
"""Tokenizers whose texts may be cut."""


def single_word() -> Tokenizer:
    tokens = [*_special(*TURNS, "EOT"), AddedToken("im", single_word=True, normalized=False)]
    return _byte_level(pre_tokenizers.ByteLevel(), tokens)


def takes_spaces_before() -> Tokenizer:
    return _byte_level(pre_tokenizers.ByteLevel(), _special(*TURNS, lstrip=True))


def normalized_specials() -> Tokenizer:
    return _spaced_bpe(_special(*TURNS, normalized=True))


def composed_specials() -> Tokenizer:
    tokenizer = _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), _special(*TURNS, normalized=True))
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def specials_as_text() -> Tokenizer:
    tokenizer = gpt_2()
    tokenizer.encode_special_tokens = True
    return tokenizer


def unnatural() -> Tokenizer:
    return _byte_level(pre_tokenizers.ByteLevel(), [])


UNSAFE: dict[str, tuple[Callable[[], Tokenizer], str, str]] = {
    "a token that looks beside it": (single_word, "im", "EOT"),
    "spaces before taken": (takes_spaces_before, "a  ", "<|im_end|>"),
    "specials behind a prepended space": (normalized_specials, "a", "<|im_end|>b"),
    "specials that normalization changes": (composed_specials, "a ", "<|im_end|>\u0338b"),
    "specials that are text": (specials_as_text, "a ", "<|im_end|>"),
    "no specials": (unnatural, "a ", "<|im_end|>"),
}
"""Tokenizers whose texts may not be cut, and a text of two parts that shows it."""


@cache
def built(name: str) -> Tokenizer:
    return SAFE[name]()
