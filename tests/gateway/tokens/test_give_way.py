import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateway.tokens.models import lay

PROGRAM = """
import os, sys
from pathlib import Path
from gateway.tokens.local import LocalTokenizer
from gateway.tokens.model_files import find_model

def priorities():
    tasks = Path("/proc/self/task").iterdir()
    return {task.name: os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in tasks}

before = priorities()
tokenizer = LocalTokenizer(find_model(sys.argv[1]))
assert tokenizer.encode_text("one<|im_end|>two<|im_end|>three").ids
after = priorities()
print(*(after[task] - before[str(os.getpid())] for task in after.keys() - before.keys()))
assert before.items() <= after.items()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
def test_only_the_librarys_threads_have_a_lower_priority(tmp_path: Path) -> None:
    lay(tmp_path / "model")
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "model")],
        cwd=Path(__file__).parents[3],
        env=environment | {"RAYON_NUM_THREADS": "2"},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["3", "3"]
