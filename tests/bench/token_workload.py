"""What `tokens` measures with: the files of a model, and conversations.

No model is downloaded. The tokenizer is a byte-level BPE with the splitting, the special tokens and the template of
Llama 3, trained on the sources of the standard library; the conversations are made of the same sources. It is kept in
`build/`, by everything that it depends on.
"""

import hashlib
import json
import platform
import random
import shutil
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.bench.index_rows import ROOT
from tests.gateway.tokens.built import llama_3
from tests.gateway.tokens.templates import TEMPLATES

MODEL: Final = "bench-model"
CONTEXT_TOKENS: Final = 262_144
TURNS: Final = 20
_VOCABULARY: Final = 65_536
_QUICK_VOCABULARY: Final = 8_192
_QUICK_CHARS: Final = 1_500_000
_SPECIAL: Final = ("begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id", "eom_id", "python_tag")
_SAMPLE_CHARS: Final = 400_000
_SYSTEM_CHARS: Final = 4_000
_SHORT_CHARS: Final = 1_000
_TOOLS: Final = 10


class Workload:
    """A model's directory, and text by the token."""

    def __init__(self, *, quick: bool) -> None:
        """Trains the tokenizer where it is not at hand: some ten seconds, one if quick."""
        self.text = _corpus()
        self.files = _model(self.text[:_QUICK_CHARS] if quick else self.text, quick=quick)
        sample = self.text[:_SAMPLE_CHARS]
        backend = Tokenizer.from_file(str(self.files / "tokenizer.json"))
        self._chars = len(sample) / len(backend.encode(sample, add_special_tokens=False).ids)

    def conversation(self, seed: int, tokens: int) -> list[bytes]:
        """A chat's bodies, turn by turn: each has the one before, an answer and a next question.

        The first asks about a text of half of the `tokens` that the last of `TURNS` has, give or take a tenth; those in
        between add as many each, and a short one follows.
        """
        rng = random.Random(seed)
        about = int(tokens * self._chars / 2)
        added = about // (TURNS - 1)
        messages = [{"role": "system", "content": self._piece(rng, min(_SYSTEM_CHARS, added))}]
        tools = [self._tool(rng, number) for number in range(_TOOLS)]
        bodies = []
        for turn in range(TURNS + 1):
            said = added // 2 if turn < TURNS else min(_SHORT_CHARS, added // 2)
            if turn:
                messages.append({"role": "assistant", "content": self._piece(rng, said)})
            messages.append({"role": "user", "content": self._piece(rng, said if turn else about)})
            bodies.append(msgspec.json.encode({"model": MODEL, "messages": messages, "tools": tools}))
        return bodies

    def _piece(self, rng: random.Random, chars: int) -> str:
        at = rng.randrange(len(self.text) - chars)
        return self.text[at : at + chars]

    def _tool(self, rng: random.Random, number: int) -> dict[str, object]:
        fields = {"path": {"type": "string", "description": self._piece(rng, 60)}, "limit": {"type": "integer"}}
        parameters = {"type": "object", "properties": fields, "required": ["path"]}
        about = {"name": f"tool_{number}", "description": self._piece(rng, 200), "parameters": parameters}
        return {"type": "function", "function": about}


@cache
def _corpus() -> str:
    """The standard library's modules, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    sources = [path for path in sorted(root.rglob("*.py")) if {"site-packages", "test", "tests"}.isdisjoint(path.parts)]
    return "".join(source.read_text(encoding="utf-8", errors="ignore") for source in sources)


def _model(text: str, *, quick: bool) -> Path:
    vocabulary = _QUICK_VOCABULARY if quick else _VOCABULARY
    made_of = (Path(__file__).read_text(), text, tokenizers.__version__, platform.python_version())
    digest = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:12]
    directory = ROOT / "build" / f"tokens-{vocabulary}-{digest}"
    if not directory.exists():
        sys.stderr.write(f"bench: tokens: training a tokenizer of {vocabulary:,} tokens …\n")
        unfinished = directory.with_name(f"{directory.name}.{random.SystemRandom().randrange(2**32)}")
        _lay(unfinished, text, vocabulary)
        try:
            unfinished.rename(directory)
        except OSError:  # another run was faster
            shutil.rmtree(unfinished)
    return directory


def _lay(directory: Path, text: str, vocabulary: int) -> None:
    directory.mkdir(parents=True)
    special = [f"<|{name}|>" for name in _SPECIAL]
    bpe = Tokenizer(models.BPE(ignore_merges=True))
    bpe.pre_tokenizer = llama_3().pre_tokenizer
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(text.splitlines(keepends=True), trainer)
    bpe.add_tokens([AddedToken(content, special=True, normalized=False) for content in special])
    bpe.save(str(directory / "tokenizer.json"))
    begin, end = special[0], special[4]
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": begin,
            "eos_token": end,
            "chat_template": TEMPLATES["llama-3"],
        },
        "config.json": {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": bpe.get_vocab_size(),
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_attention_heads": 1,
            "num_hidden_layers": 1,
            "max_position_embeddings": CONTEXT_TOKENS,
            "torch_dtype": "bfloat16",
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
