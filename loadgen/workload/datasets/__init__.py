"""Synthetic loads, each a struct of parameters that makes requests of a seed.

The same parameters and seed give the same requests, in every process. Sessions come one behind the other, each in the
order of its turns, and what waits for no other request has no time yet: `arrivals.due` gives it one, or
`arrivals.closed_loop` has it wait for another. Of an endless load it suffices to read as far as the next request whose
time has not come.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import msgspec

from loadgen.workload import Request
from loadgen.workload.datasets.agentic import Agentic
from loadgen.workload.datasets.chat import Chat
from loadgen.workload.datasets.docqa import DocQa
from loadgen.workload.datasets.random_prompts import RandomPrompts
from loadgen.workload.datasets.shared_prefix import SharedPrefix


class Dataset(Protocol):
    """What a load's requests are made from."""

    def requests(self, seed: int) -> Iterator[Request]:
        """The requests of that seed; endless, unless a parameter says how many there are."""
        ...


DATASETS: Final[Mapping[str, type[Dataset]]] = {
    "random": RandomPrompts,
    "shared-prefix": SharedPrefix,
    "docqa": DocQa,
    "chat": Chat,
    "agentic": Agentic,
}


def dataset(name: str, parameters: Mapping[str, Any]) -> Dataset:
    """The dataset of that name with parameters as JSON or YAML has them.

    ValueError for a name or key that is unknown and for a value out of range, with the path of what is wrong.
    """
    if name not in DATASETS:
        raise ValueError(f"no dataset {name!r}; there are {', '.join(DATASETS)}")
    try:
        return msgspec.convert(parameters, DATASETS[name])
    except msgspec.ValidationError as error:
        raise ValueError(f"dataset {name}: {error}") from None
