"""Rows of files as a map-style dataset for PyTorch, in memory that does not grow with their number.

`VisionDataset` reads what the trainer reads: JSON Lines, JSON, CSV and Parquet files, folders of them, and datasets of the hub. A row
is read when it is asked for, and nothing of it is kept.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from . import _native


class Row(dict):
    """A row: `{"messages": [...]}`, with images as encoded bytes. `id` says where it is, such as `train.jsonl, row 3`."""

    id: str

    def __init__(self, fields: Mapping[str, Any] = {}, id: str = "") -> None:  # noqa: B006 (only read)
        super().__init__(fields)
        self.id = id

    def __reduce__(self) -> tuple[Any, ...]:
        return Row, (dict(self), self.id)


class VisionDataset:
    """The rows of a file, a folder, or a dataset of the hub.

    `split` names the split where the names of files tell splits apart. A row reads image files only below the folder of its own file
    and below `image_roots`, and other machines only where `allow_remote_images` is set. `columns` says which columns mean what where
    their names do not: `{"image": "photo", "prompt": "question"}`.

    It can be used by a DataLoader whose workers are forked or spawned, by HF's Trainer (`remove_unused_columns=False`), and by itself.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split: str | None = None,
        image_roots: Sequence[str | os.PathLike[str]] = (),
        allow_remote_images: bool = False,
        columns: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(image_roots, (str, os.PathLike)):
            image_roots = [image_roots]
        name = os.fspath(path)
        self.path = os.path.abspath(name) if os.path.exists(name) else name
        self._settings = {
            "split": split,
            "image_roots": [os.path.abspath(root) for root in image_roots],
            "allow_remote_images": allow_remote_images,
            "columns": ",".join(f"{meaning}={column}" for meaning, column in columns.items()) if columns else None,
        }
        self._rows = _native.Rows(self.path, **self._settings)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        """A row, counted from the end if the number is negative; for a slice, a list of rows."""
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self))))
        number = operator.index(index)
        place = number + len(self) if number < 0 else number
        if not 0 <= place < len(self):
            raise IndexError(f"there is no row {number} in a dataset of {len(self)}")
        return Row(*self._rows.row(place))

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """The rows of a batch: a DataLoader asks for them together."""
        return [self[index] for index in indices]

    def __iter__(self) -> Iterator[Row]:
        for place in range(len(self)):
            yield Row(*self._rows.row(place))

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_settings": self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._rows = _native.Rows(self.path, **self._settings)

    def __repr__(self) -> str:
        return f"VisionDataset({self.path!r}, rows={len(self)})"
