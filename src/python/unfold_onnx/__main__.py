"""The command ``unfold``."""

from __future__ import annotations

import sys

from unfold_onnx import _native


def main() -> None:
    """Runs the command line, then ends the process with its exit code."""
    sys.exit(_native.main(["unfold", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
