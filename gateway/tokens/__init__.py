"""A prompt's token ids, exactly as the engine will have them, and how they were come by."""

from gateway.tokens.memo import TokenMemo
from gateway.tokens.prompt import Prompt, TokenIds, given_prompts, unknown
from gateway.tokens.tokenizer import Tokenizer

__all__ = ["Prompt", "TokenIds", "TokenMemo", "Tokenizer", "given_prompts", "unknown"]
