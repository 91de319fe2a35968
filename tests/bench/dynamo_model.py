"""What Dynamo's frontend needs of a model, its tokenizer and its card: `python dynamo_model.py CORPUS DIRECTORY`.

A byte-level BPE tokenizer, trained on the prompts that it will be asked for: some three bytes a token. Runs in the
peer's environment.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 8192
CONTEXT_TOKENS = 131_072
TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}</s>{% endfor %}<s>assistant: "
)


def make(corpus: Path, directory: Path) -> None:
    """Takes a second."""
    directory.mkdir(parents=True)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train(
        [str(corpus)],
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    bpe.save(str(directory / "tokenizer.json"))
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    shape = {
        "hidden_size": 64,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "max_position_embeddings": CONTEXT_TOKENS,
    }
    files = {
        "config.json": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY}
        | shape
        | ends,
        "generation_config.json": ends,
        "tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE},
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
