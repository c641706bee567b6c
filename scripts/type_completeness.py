"""Check what part of the public interface has types, by `pyright --verifytypes`.

`type_completeness.py` prints every symbol whose type is not known and fails below FLOOR.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FLOOR = 100.0  # percent of the exported symbols whose type is known


def main() -> int:
    # pyright looks for the package in the environment of the `python` that it finds first.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = [sys.executable, "-m", "pyright", "--outputjson", "--ignoreexternal"]
    done = subprocess.run(
        [*command, "--verifytypes", "cenote"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        report = json.loads(done.stdout)["typeCompleteness"]
    except (ValueError, KeyError):
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        return 1
    for symbol in report["symbols"]:
        known = symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]
        if not known and symbol["isExported"]:
            print(symbol["name"])
            for found in symbol["diagnostics"]:
                print(f"  {place(found)}{found['message']}")
    score = 100 * report["completenessScore"]
    print(f"types: {score:.1f} % of the public interface is known, at least {FLOOR} % is wanted")
    return 0 if score >= FLOOR else 1


def place(found: dict[str, Any]) -> str:
    if not found.get("file") or "range" not in found:
        return ""
    return f"{os.path.relpath(found['file'])}:{found['range']['start']['line'] + 1}: "


if __name__ == "__main__":
    sys.exit(main())
