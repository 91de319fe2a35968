"""A tokenizer with a token per byte, for clients that count tokens themselves: `python tokenizer.py FOLDER`.

Runs in the client's environment, where `transformers` is.
"""

import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {token: number for number, token in enumerate(["<eos>", *alphabet])}
bytewise = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bytewise.decoder = decoders.ByteLevel()
made = PreTrainedTokenizerFast(tokenizer_object=bytewise, eos_token="<eos>", bos_token="<eos>", pad_token="<eos>")  # noqa: S106
made.save_pretrained(sys.argv[1])
