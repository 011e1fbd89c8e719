"""Reports progress."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Optional, Union

Progress = Union[bool, "Callable[[str, int, int], object]"]


@contextmanager
def reporting(progress: Progress) -> Generator[Optional[Callable[[str, int, int], object]]]:
    """The function to call with the stage, the number of completed steps and the number of all steps.

    If ``progress`` is true and tqdm is installed, the function updates a bar.
    """
    if not isinstance(progress, bool):
        yield progress
        return
    if not progress:
        # tqdm is imported only on demand: with its own imports it takes more memory than many
        # models.
        yield None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield None
        return
    with tqdm(desc="unfold", leave=False) as bar:

        def tell(stage: str, done: int, of: int) -> None:
            bar.set_description(f"unfold: {stage}", refresh=False)
            bar.total, bar.n = of, done
            bar.refresh()

        yield tell
