"""What a simulated pod costs: capacities, and the coefficients of its step, restore and pull times.

One engine step takes ``step_fixed_ms`` + the prefill chunks in it + a term for each sequence that decodes. A chunk of n
tokens on top of c computed ones takes p·n + q·(n² + 2·n·c): summed over its chunks a prompt of N tokens costs p·N +
q·N², however it was cut. A decoding sequence takes ``decode_ms`` and reads the KV of all its c tokens, which takes
``decode_us_per_kilotoken_context`` · c / 1000: the longer the contexts, the more decodes hold up the prefills that
share their steps. A pull takes ``pull_fixed_ms`` + ``pull_us_per_token`` per token on an unshared link, and then a
restore.

A profile is a YAML file whose keys are the fields of ``PodProfile``; what it leaves out has the default. Those beside
this module go by their names, ``demo.yaml`` explains every key.
"""

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import yaml
from msgspec import Meta

Count: TypeAlias = Annotated[int, Meta(ge=1)]
Cost: TypeAlias = Annotated[float, Meta(ge=0)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]


class ProfileError(ValueError):
    """One line: the file, the path inside it, the reason; or which profiles there are."""


class PodProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size and speed of a pod. Durations are divided by ``speed``; deadlines (``pull_*_deadline_s``) are real time.

    Raises ValueError when one sequence of ``max_model_len`` tokens would not fit the GPU blocks.
    """

    block_size: Count = 16
    gpu_blocks: Count = 4096
    cpu_blocks: Annotated[int, Meta(ge=0)] = 16384
    max_model_len: Count = 32768
    max_running: Count = 256
    token_budget: Count = 8192  # tokens one step may compute, decodes included

    request_fixed_ms: Cost = 2.0  # once per request, in its first step
    step_fixed_ms: Cost = 4.0
    prefill_us_per_token: Cost = 100.0
    prefill_ns_per_token_squared: Cost = 0.0
    decode_ms: Cost = 0.2
    decode_us_per_kilotoken_context: Cost = 0.0

    kv_bytes_per_token: Count = 131_072
    restore_gb_per_s: Positive = 40.0  # CPU tier to GPU
    pull_fixed_ms: Cost = 5.0
    pull_us_per_token: Cost = 5.0
    pull_setup_ms: Cost = 0.0  # once per ordered pair of pods
    pull_handshake_deadline_s: Positive = 3.0
    pull_lookup_deadline_s: Positive = 30.0
    pull_fetch_deadline_s: Positive = 30.0

    speed: Positive = 1.0

    def __post_init__(self) -> None:
        """Refuse capacities with which a legal request could never run."""
        if self.gpu_blocks * self.block_size < self.max_model_len:
            raise ValueError("gpu_blocks x block_size must hold one sequence of max_model_len tokens")
        if min(self.block_size, self.max_running, self.token_budget) < 1 or self.speed <= 0:
            raise ValueError("block_size, max_running, token_budget and speed must be positive")

    def prefill_s(self, tokens: int, context: int) -> float:
        """Seconds to compute a chunk of ``tokens`` behind ``context`` computed ones."""
        linear_us = self.prefill_us_per_token * tokens
        square_ns = self.prefill_ns_per_token_squared * (tokens * tokens + 2 * tokens * context)
        return (linear_us * 1e-6 + square_ns * 1e-9) / self.speed

    def decode_s(self, context: int) -> float:
        """Seconds that a sequence of ``context`` tokens adds to a step in which it decodes."""
        return (self.decode_ms * 1e-3 + self.decode_us_per_kilotoken_context * context * 1e-9) / self.speed

    def restore_s(self, tokens: int) -> float:
        """Seconds to copy ``tokens`` from the CPU tier to the GPU."""
        return tokens * self.kv_bytes_per_token / (self.restore_gb_per_s * 1e9) / self.speed

    def pull_s(self, tokens: int) -> float:
        """Seconds ``tokens`` take on the link when no other pull shares it."""
        return self.pull_us_per_token * tokens * 1e-6 / self.speed

    def ms(self, milliseconds: float) -> float:
        """Seconds that ``milliseconds`` of the profile take at this speed."""
        return milliseconds * 1e-3 / self.speed


def decode(text: str, source: str) -> PodProfile:
    """Return the profile that a YAML text describes. Raises ProfileError; ``source`` names where the text is from."""
    try:
        fields = _mapping(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "$"
        raise ProfileError(f"{source}: {place}: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:  # PyYAML lets a ValueError through: 2026-99-99 looks like a date
        raise ProfileError(f"{source}: $: {' '.join(str(error).split())}") from error
    return convert(fields, source)


def convert(fields: dict[Any, Any], source: str) -> PodProfile:
    """Return the profile with these fields. Raises ProfileError; ``source`` names where they are from."""
    try:
        return msgspec.convert(fields, PodProfile)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).rpartition(" - at `")
        raise ProfileError(f"{source}: {place.rstrip('`')}: {reason}" if reason else f"{source}: $: {error}") from error


def _mapping(text: str) -> dict[Any, Any]:
    """Return what the text maps; nothing where it only comments. A key given twice is an error, not its last value."""
    loader = yaml.SafeLoader(text)
    node = loader.get_single_node()
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise yaml.MarkedYAMLError(problem="expected a mapping such as `block_size: 64`", problem_mark=node.start_mark)
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a key has to be a name", problem_mark=key.start_mark)
        if key.value in seen:
            raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
        seen.add(key.value)
    fields: dict[Any, Any] = loader.construct_document(node)
    return fields


def load(path: Path) -> PodProfile:
    """Read a profile's file. Raises ProfileError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path}: not UTF-8") from error
    return decode(text, str(path))


# The shipped profiles, by name.
PROFILES: Final[dict[str, PodProfile]] = {
    entry.name.removesuffix(".yaml"): decode(entry.read_text(encoding="utf-8"), entry.name)
    for entry in sorted((files("loadgen") / "profiles").iterdir(), key=lambda entry: entry.name)
    if entry.name.endswith(".yaml")
}


def profile_named(name: str) -> PodProfile:
    """Return the shipped profile of that name, else what the file of that name holds. Raises ProfileError."""
    if name in PROFILES:
        return PROFILES[name]
    if Path(name).is_file():
        return load(Path(name))
    raise ProfileError(f"no profile and no file {name!r}; there are {', '.join(PROFILES)}")
