"""Runs the transcripts of a page: the command after each `$ ` in a ```console block must print the lines after it.

    python tests/python/transcript.py docs/python.md
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def commands(page: str) -> Iterator[tuple[str, str]]:
    """Each command of a page and its output."""
    for block in page.split("```console\n")[1:]:
        for entry in ("\n" + block.split("```")[0]).split("\n$ ")[1:]:
            command, _, printed = entry.partition("\n")
            yield command, printed


def run(command: str, expected: str) -> None:
    """Runs a command in the root of the repository and checks its output."""
    print(f"  $ {command}", flush=True)
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode or done.stdout.strip() != expected.strip():
        sys.exit(f"exit code {done.returncode}, and it printed\n{done.stdout}{done.stderr}in the place of\n{expected}")


def main() -> None:
    page = Path(sys.argv[1]).read_text(encoding="utf-8")
    for command, expected in commands(page):
        run(command, expected)


if __name__ == "__main__":
    main()
