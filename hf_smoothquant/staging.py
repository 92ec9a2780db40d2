"""Folders that are written aside and then moved into place: the new content, the old one, or nothing that loads."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

STAGING = ".saving-"


@contextmanager
def staged(folder: Path, key: str, is_stale: Callable[[str], bool] = lambda file: False) -> Iterator[Path]:
    """Gives a folder to write into; at the end its files move to `folder`, which an error leaves as it was.

    While the files are exchanged there is no `key`, without which the folder doesn't load.

    Args:
        folder (`Path`): where the files belong; made if it isn't there.
        key (`str`): the file that a reader needs first. When it is among the new files it is removed before, and moved
            after, all others; when it isn't, the new files only join the old ones.
        is_stale (`Callable`, *optional*): whether a file of `folder`, by name, would be wrong beside the new ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=folder))
    try:
        yield staging
        names = sorted(os.listdir(staging), key=lambda name: name == key)
        try:
            _publish(staging, folder, names, key, is_stale)
        except KeyboardInterrupt:
            _publish(staging, folder, names, key, is_stale)  # a few renames: to finish them loses nothing
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: Path, folder: Path, names: Iterable[str], key: str, is_stale: Callable[[str], bool]) -> None:
    """Moves `names` from `staging` to `folder`. It can be called again when it was interrupted."""
    if key in names:
        (folder / key).unlink(missing_ok=True)
        for file in os.listdir(folder):
            if file not in names and is_stale(file):
                (folder / file).unlink()
    for name in names:
        if (staging / name).exists():
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            os.replace(staging / name, folder / name)
