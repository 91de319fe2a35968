import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from loadgen.cli import main


def test_pods_are_served_until_interrupted() -> None:
    command = [sys.executable, "-W", "error", "-m", "loadgen", "pod", "--count", "2", "--ranks", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "pods:\n"
        entry = "".join(process.stdout.readline() for _ in range(5))
        pattern = r"  - url: (http://127\.0\.0\.1:\d+)\n    kv_events: tcp:.*\n    kv_replay: tcp:.*\n    p2p: .*\n"
        found = re.fullmatch(pattern + r"    data_parallel_size: 2\n", entry)
        assert found is not None, entry
        with urllib.request.urlopen(f"{found[1]}/health", timeout=5) as response:
            assert response.status == 200
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (0, "")


def test_a_command_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "COMMAND" in capsys.readouterr().err
