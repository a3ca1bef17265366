"""Images of rows, taken without changing the objects that hold them.

Takes a PIL image, a path or an array, and gives encoded bytes or RGB pixels for the native module. An image that Pillow opened lazily
stays undecoded: the bytes of its file are read from behind it, and its file's position is put back. Pillow itself is only imported
where an image of it, or one that only Pillow can decode, is met.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

# Width, height, bytes, and whether these are an encoded image rather than RGB pixels.
Taken = "tuple[int, int, bytes, bool]"

# What the native module decodes exactly as Pillow's `convert("RGB")` does, by format. Pillow decodes the rest, in a private copy.
# TIFF is not here: Pillow turns a TIFF upright when it loads it, but no other format.
_NATIVE = {
    "JPEG": {"RGB", "L", "CMYK"},
    "MPO": {"RGB", "L", "CMYK"},
    "PNG": {"RGB", "L", "P", "1"},
    "WEBP": {"RGB"},
    "BMP": {"RGB", "L", "P", "1"},
    "GIF": {"RGB", "L", "P"},
}
# The largest encoded image that is read, as in every other place: 128 MiB.
_MOST_BYTES = 128 << 20

# Held while a file's position is away from where its owner left it.
_position = threading.Lock()


def _new_lock() -> None:
    global _position
    _position = threading.Lock()


# A thread of the parent may hold the lock at the moment of a fork, and that thread is not copied.
os.register_at_fork(after_in_child=_new_lock)


def is_image(value: Any) -> bool:
    """Whether a value is a PIL image. Imports nothing: where Pillow was not imported, there are none."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def plain(value: Any) -> Any:
    """A value of a row as plain Python, or as the tuple of an image: width, height, bytes, and whether they are encoded.

    Raises `ValueError` about what cannot be part of a row.
    """
    if is_image(value):
        return _pil(value)
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        return path if isinstance(path, str) else os.fsdecode(path)
    if isinstance(value, Mapping):
        return dict(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _array(value)
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, memoryview):
        return value.tobytes()
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _array(value.detach().cpu().numpy())
    kind = type(value)
    advice = "; give images as PIL images, paths, bytes, base64, or uint8 arrays" if _may_be_image(value) else ""
    raise ValueError(f"a value of type {kind.__module__}.{kind.__qualname__} is not read{advice}")


def _may_be_image(value: Any) -> bool:
    """Whether somebody may have meant an image: another library's array, or a file."""
    return hasattr(value, "dtype") or hasattr(value, "read")


def _array(array: Any) -> Any:
    if array.dtype == "uint8" and array.ndim == 4:
        # Images of one size, as `datasets` stacks them.
        return list(array)
    if array.dtype == "uint8" and array.ndim == 3 and 3 in (array.shape[0], array.shape[2]):
        # Channels come first in what torchvision reads, and last elsewhere.
        pixels = array if array.shape[2] == 3 else array.transpose(1, 2, 0)
        height, width, _ = pixels.shape
        return width, height, pixels.tobytes(), False
    if array.ndim <= 1 and array.dtype != object and array.dtype.kind in "biufU":
        return array.tolist()
    if array.ndim == 1 and array.dtype == object:
        # A list of objects, as pandas keeps them.
        return list(array)
    shape = " x ".join(map(str, array.shape))
    raise ValueError(f"an array of {array.dtype} and {shape} is no image: an image is uint8 of height x width x 3 or 3 x height x width")


def _pil(image: Any) -> tuple[int, int, bytes, bool]:
    """The encoded bytes of an image that was opened and not decoded, or the pixels of any other."""
    if not _is_lazy(image):
        return (*_rgb(image), False)
    data = _encoded(image)
    frame = image.tell()
    drafted = bool(getattr(image, "decoderconfig", ()))
    if frame == 0 and not drafted and not _has_alpha(image) and image.mode in _NATIVE.get(image.format or "", ()):
        return (*image.size, data, True)
    with _open(data) as private:
        if drafted:
            _draft(private, image)
        if frame:
            private.seek(frame)
        _check_size(private, image.size)
        _set_as_owner_did(private, image)
        return (*_rgb(private), False)


def _draft(private: Any, image: Any) -> None:
    """Drafts a copy to the scale of an image. Sides are rounded up, so those of the drafted image may ask for a smaller scale."""
    scale = image.decoderconfig[0]
    private.draft(image.mode, tuple(max(1, side // scale) for side in private.size))


def _set_as_owner_did(private: Any, image: Any) -> None:
    """What can be set on an image before it is decoded: its transparency, and the resolution of a JPEG 2000."""
    transparency = image.info.get("transparency")
    if private.info.get("transparency") != transparency:
        private.info["transparency"] = transparency
        if transparency is None:
            del private.info["transparency"]
    # Until it is set, `reduce` is the method of every image.
    if image.format == "JPEG2000" and isinstance(image.reduce, int):
        private.reduce = image.reduce
        private.load()


def _is_lazy(image: Any) -> bool:
    """Whether Pillow has still to decode an image. Loaded pixels may have been painted over, so those count then."""
    from PIL import ImageFile

    if not isinstance(image, ImageFile.ImageFile):
        return False
    pixels = image._im if hasattr(image, "_im") else image.im
    return pixels is None or _is_closed(pixels) or bool(image.tile)


def _is_closed(part: Any) -> bool:
    """Whether Pillow has put an object in a part's place that raises at every use: it does so when an image is closed."""
    return type(part).__name__ == "DeferredError"


def _has_alpha(image: Any) -> bool:
    return "A" in image.getbands() or image.info.get("transparency") is not None


def _rgb(image: Any) -> tuple[int, int, bytes]:
    """The pixels of an image, as HF's processor takes them from a PIL image: as they are stored, what is transparent on white."""
    if _has_alpha(image):
        from PIL import Image

        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, rgba)
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    return (*rgb.size, rgb.tobytes())


def _open(data: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(data))


def _check_size(private: Any, size: tuple[int, int]) -> None:
    if private.size != size:
        now, then = (f"{width}x{height}" for width, height in (private.size, size))
        raise ValueError(f"the image's file has changed since it was opened: it is {now} now and was {then}")


def decode(data: bytes, upright: bool, size: tuple[int, int] | None) -> tuple[int, int, bytes]:
    """Decodes an image that the native module does not know, by Pillow. `size` is what it must have."""
    with _open(data) as image:
        if not upright:
            if size is not None:
                _check_size(image, size)
            return _rgb(image)
        from PIL import ImageOps

        turned = ImageOps.exif_transpose(image).convert("RGB")
        return (*turned.size, turned.tobytes())


def _encoded(image: Any) -> bytes:
    """The bytes of the file that a lazy image was opened from. Its position is what it was before."""
    file = _open_file(image)
    if file is None:
        data = _by_name(image)
    elif type(file) is io.BytesIO:
        # Without a copy, unless it was written to.
        data = file.getvalue()
    elif (number := _descriptor(file)) is not None:
        data = _read_at(number)
    else:
        data = _read_and_return(file)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"an encoded image of more than {_MOST_BYTES} bytes")
    if not data:
        raise ValueError("the image's file is empty now")
    return data


def _open_file(image: Any) -> Any:
    """The file that an image reads from, unless it was closed."""
    for file in (getattr(image, "fp", None), getattr(image, "_fp", None)):
        if file is not None and not _is_closed(file) and not getattr(file, "closed", False):
            return file
    return None


def _by_name(image: Any) -> bytes:
    """For an image whose file was closed: its file by its path, if it is still there."""
    name = getattr(image, "filename", "")
    if not name:
        raise ValueError("the image was closed before it was decoded, so its pixels are gone")
    try:
        with open(name, "rb") as file:
            return file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the image was closed before it was decoded, and its file cannot be read again: {error}") from error


def _descriptor(file: Any) -> int | None:
    """The descriptor of a plain file on disk. Others have one that gives other bytes: gzip's is of the compressed file."""
    raw = file.raw if type(file) is io.BufferedReader else file
    return raw.fileno() if type(raw) is io.FileIO else None


def _read_at(number: int) -> bytes:
    """Reads a file from its start without moving its position, which forked processes share."""
    at = 0

    def read(most: int) -> bytes:
        nonlocal at
        piece = os.pread(number, min(most, 1 << 24), at)
        at += len(piece)
        return piece

    return _read_all(read)


def _read_and_return(file: Any) -> bytes:
    with _position:
        place = file.tell()
        try:
            file.seek(0)
            return _read_all(file.read)
        finally:
            file.seek(place)


def _read_all(read: Callable[[int], bytes]) -> bytes:
    """Reads until the end: a stream may give less at once than it is asked for."""
    pieces = []
    left = _MOST_BYTES + 1
    while left > 0 and (piece := read(left)):
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
