"""Make the model that the real-engine suite serves: `python model.py DIRECTORY`, with the engine environment's Python.

A Llama of 4 layers with random weights, and a byte-level BPE tokenizer trained on the standard library's sources.
It says nothing sensible, but it says it deterministically, and its KV cache is as real as any other.
Everything is seeded, so two pods of one machine serve the same model.
"""

import sys
import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
SPECIAL_TOKENS = ("<s>", "</s>", "<pad>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")

# Each turn is enclosed in special tokens, so that a turn's tokens do not depend on the turns around it.
CHAT_TEMPLATE = """\
<s>
{%- if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif -%}
{%- for message in messages -%}
<|{{ message.role }}|>
{%- if message.name %}{{ message.name }}: {% endif -%}
{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif -%}
{{- message.content -}}
{%- for call in message.tool_calls or [] -%}
<call>{{ call.function.name }} {{ call.function.arguments | tojson }}</call>
{%- endfor -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>
{%- if enable_thinking is defined and not enable_thinking %}<think></think>{% endif -%}
{%- endif -%}
"""


def make(directory: Path) -> None:
    """Write weights, configuration and tokenizer into `directory`; takes some ten seconds."""
    directory.mkdir(parents=True, exist_ok=True)
    make_tokenizer(directory)
    make_weights(directory)


def make_tokenizer(directory: Path) -> None:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    bpe.train([str(source) for source in sources], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        clean_up_tokenization_spaces=False,
        **dict(zip(("bos_token", "eos_token", "pad_token"), SPECIAL_TOKENS, strict=False)),
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(directory)


def make_weights(directory: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=32768,
        # Wide enough that the first choice among tokens is clear: bf16 rounds differently in batches of other sizes.
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        torch_dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
