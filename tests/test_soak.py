"""The short version of `make soak`: nothing grows over thousands of mixed cycles."""

import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parent / "soak.py"


def test_mixed_cycles_leave_nothing_behind():
    result = subprocess.run(
        [sys.executable, str(SOAK), "--cycles", "2000"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.rstrip().endswith("PASS")
