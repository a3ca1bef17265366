"""The collator without torch: what it gives, what it refuses, and what it leaves behind, which is nothing."""

import base64
import gc
import gzip
import io
import json
import multiprocessing
import os
import pickle
import shutil
import struct
import tarfile
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from model_garden import ConfigError, GardenError, RowError, VisionCollator


def png(width=56, height=56, colour=(200, 30, 60)):
    """A PNG of one colour, written without Pillow."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes(colour) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


PNG = png()
BASE64 = base64.b64encode(PNG).decode()


def row(*images, question="What colour is this?", answer="Red"):
    parts = [{"type": "image", "image": image} for image in images]
    return {
        "messages": [
            {"role": "user", "content": [*parts, {"type": "text", "text": question}]},
            {"role": "assistant", "content": answer},
        ]
    }


@pytest.fixture(scope="session")
def collator(tiny_model):
    return VisionCollator(tiny_model, return_tensors="np", threads=2)


def assert_same(ours, theirs):
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype and np.array_equal(ours[name], value), name


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# What it gives


def test_a_batch_is_padded_on_the_right_and_learns_what_the_assistant_says(collator):
    batch = collator([row(PNG), row(question="Why?", answer="Because it is so, and has always been.")])
    assert {name: (value.dtype.name, value.shape[1:]) for name, value in batch.items() if name.startswith(("pixel", "image"))} == {
        "pixel_values": ("float32", (1176,)),
        "image_grid_thw": ("int64", (3,)),
    }
    tokens = batch["input_ids"].shape
    for name in ["input_ids", "attention_mask", "mm_token_type_ids", "labels"]:
        assert batch[name].dtype == np.int64 and batch[name].shape == tokens, name
    for row_mask, labels, ids in zip(batch["attention_mask"], batch["labels"], batch["input_ids"]):
        assert sorted(row_mask, reverse=True) == list(row_mask), "padding is on the right"
        assert (labels[row_mask == 0] == -100).all()
        learned = labels != -100
        assert learned.any() and (labels[learned] == ids[learned]).all()
    assert batch["mm_token_type_ids"].sum(axis=1).tolist() == [4, 0], "56 x 56 pixels are four tokens"


def test_text_alone_has_no_image_keys(collator):
    assert set(collator([row()])) == {"input_ids", "attention_mask", "mm_token_type_ids", "labels"}


def test_each_way_to_write_an_image_gives_the_same(collator, tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    expected = collator([row(PNG)])
    pixels = np.full((56, 56, 3), (200, 30, 60), np.uint8)
    spelled = [path, str(path), f"file://{path}", bytearray(PNG), memoryview(PNG), list(PNG), BASE64, f"data:image/png;base64,{BASE64}"]
    objects = [{"bytes": PNG, "path": "gone.png"}, {"bytes": None, "path": str(path)}, {"base64": BASE64}, pixels, pixels[::1, ::-1]]
    spaced = [f"\n  {BASE64}\n", f" data:image/png;base64, {BASE64}\n"]
    for image in spelled + spaced + objects:
        assert_same(collator([row(image)]), expected)


def test_arrays_have_their_channels_first_or_last_and_may_be_stacked(collator):
    """As torchvision reads an image, and as `datasets` gives a column of images of one size."""
    pixels = np.arange(2 * 30 * 40 * 3, dtype=np.uint8).reshape(2, 30, 40, 3)
    expected = collator([row(*pixels)])
    assert_same(collator([row(*pixels.transpose(0, 3, 1, 2))]), expected)
    for stack in [pixels, pixels.transpose(0, 3, 1, 2)]:
        assert_same(collator([{**row(None, None), "images": stack}]), expected)


@pytest.mark.parametrize(
    "one",
    [
        [{"role": "user", "content": [{"type": "image", "image": PNG}, {"type": "text", "text": "Hm?"}]}, {"role": "assistant", "content": "Red"}],
        {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Hm?"}]}, {"role": "assistant", "content": "Red"}], "images": [PNG]},
        {"messages": ({"role": "user", "content": "<image>Hm?"}, {"role": "assistant", "content": "Red"}), "images": (PNG,)},
        {"prompt": "Hm?", "completion": "Red", "images": [PNG], "id": 7},
        {"prompt": [{"role": "user", "content": "Hm?"}], "completion": [{"role": "assistant", "content": "Red"}], "image": PNG},
        {"conversations": [{"from": "human", "value": "<image>Hm?"}, {"from": "gpt", "value": "Red"}], "image": BASE64},
        {"question": "Hm?", "answer": "Red", "image": {"bytes": PNG, "path": None}, "source": object()},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}}, {"type": "input_text", "text": "Hm?"}]}, {"role": "assistant", "content": "Red"}]},
    ],
)
def test_rows_of_every_tool_say_the_same(collator, one):
    assert_same(collator([one]), collator([row(PNG, question="Hm?")]))


def test_the_same_batch_again_is_the_same_with_any_number_of_threads(tiny_model):
    rows = [row(png(60 + n, 90, (n, n, n)), PNG, answer=f"{n}") for n in range(7)]
    expected = VisionCollator(tiny_model, return_tensors="np", threads=1)(rows)
    for threads in [2, 5]:
        collator = VisionCollator(tiny_model, return_tensors="np", threads=threads)
        for _ in range(3):
            assert_same(collator(rows), expected)


def test_the_arrays_of_a_batch_can_be_written_and_outlive_the_next_batch(collator):
    first = collator([row(PNG)])
    values = first["pixel_values"].copy()
    collator([row(png(colour=(1, 2, 3)))])
    assert np.array_equal(first["pixel_values"], values)
    first["pixel_values"] *= 0


def test_an_array_that_anybody_holds_is_never_filled_again(collator):
    held = [(colour, collator([row(png(colour=(colour, colour, colour)))])["pixel_values"]) for colour in range(0, 250, 10)]
    # What lies on an array holds it as well: a part of it, and whoever takes its memory by the buffer protocol.
    parts = [(colour, values[1:, :7]) for colour, values in held]
    views = [(colour, memoryview(values)) for colour, values in held]
    expected = {colour: values.copy() for colour, values in held}
    del held
    for colour in range(200):
        collator([row(png(colour=(colour, 0, 0)))])
    for colour, part in parts:
        assert np.array_equal(part, expected[colour][1:, :7])
    for colour, view in views:
        assert np.array_equal(np.asarray(view), expected[colour])


def test_the_array_of_a_batch_that_is_gone_is_filled_again(tiny_model):
    collator = VisionCollator(tiny_model, return_tensors="np", threads=1)

    taken = []

    def place(*images):
        values = collator([row(*images)])["pixel_values"]
        address = values.ctypes.data
        shape = values.shape
        del values
        # Memory that was given back would be taken by these, and not be there for the next batch.
        taken.extend(np.ones(shape, np.float32) for _ in range(4))
        return address

    # A smaller batch fits there too, unless most of the array would lie idle below it.
    large, again, smaller = place(PNG, PNG, PNG), place(PNG, PNG, PNG), place(PNG, PNG)
    assert large == again == smaller
    assert place(PNG) != large


def test_labels_follow_train_on_and_the_rows_own_weights(tiny_model):
    turns = [("user", "One?"), ("assistant", "First"), ("user", "Two?"), ("assistant", "Second")]
    messages = [{"role": role, "content": text} for role, text in turns]

    def learned(train_on, messages):
        batch = VisionCollator(tiny_model, train_on=train_on, return_tensors="np")([messages])
        return int((batch["labels"] != -100).sum())

    every, last, all_tokens = (learned(choice, messages) for choice in ["assistant", "last", "all"])
    assert 0 < last < every < all_tokens
    messages[1]["weight"] = 0
    assert learned("assistant", messages) == last


def test_selective_loss_leaves_the_layout_of_json_out(tiny_model):
    rows = [row(answer='{"colour": "red", "size": null}')] * 3

    def learned(level, **more):
        collator = VisionCollator(tiny_model, selective_loss=level, return_tensors="np", **more)
        return int((collator(rows)["labels"] != -100).sum())

    levels = [learned(level) for level in ["none", "conservative", "moderate", "aggressive"]]
    assert levels == sorted(set(levels), reverse=True), "each masks more than the one before"
    assert learned("aggressive", selective_loss_keys=["other"]) == levels[2]
    assert learned("aggressive", selective_loss_keys=["colour", "size"]) == levels[3]
    one = [learned("aggressive", selective_loss_keys=keys) for keys in ["colour", ["colour"]]]
    assert levels[3] < one[0] == one[1] < levels[2]


def test_a_long_row_is_refused_or_dropped_but_never_cut(tiny_model):
    short, long = row(answer="Yes"), row(answer="word " * 300)
    limits = {"max_length": 100, "return_tensors": "np"}
    with pytest.raises(RowError, match="row 1 of the batch.*more than the 100"):
        VisionCollator(tiny_model, **limits)([short, long])
    dropping = VisionCollator(tiny_model, on_long_row="drop", **limits)
    assert_same(dropping([short, long]), dropping([short]))
    with pytest.raises(RowError, match="row 0 of the batch: .* more than the 100 .*; every row of the batch is longer") as raised:
        dropping([long, long])
    assert raised.value.row == 0


# What it refuses


def truncated_jpeg():
    image = pytest.importorskip("PIL.Image")
    data = io.BytesIO()
    image.effect_noise((200, 200), 90).convert("RGB").save(data, "JPEG")
    return data.getvalue()[: data.tell() // 2]


def endless():
    parts = []
    parts.append(parts)
    return {"messages": parts}


BROKEN = {
    "missing image": (lambda: row("/no/such/image.png"), "image.png: no such file$"),
    "missing image beside the script": (lambda: row("no-such-image.png"), "no-such-image.png: no such file in "),
    "a file that is open": (lambda: row(io.BytesIO(PNG)), "a value of type _io.BytesIO is not read; give images as"),
    "an image that is a folder": (lambda: row("/usr"), "not a file"),
    "broken base64": (lambda: row("data:image/png;base64,a*b"), "broken base64"),
    "truncated JPEG": (lambda: row(truncated_jpeg()), "image 1: .*JPEG"),
    "truncated PNG": (lambda: row(PNG, PNG[:-20]), "image 2: "),
    "no image at all": (lambda: row(b"hello, world"), "not an image"),
    "empty bytes": (lambda: row(b""), "empty"),
    "a thin line": (lambda: row(png(500, 1)), "more than 200 times"),
    "a number for an image": (lambda: row(7), "an image was expected"),
    "an array of floats": (lambda: row(np.zeros((8, 8, 3))), "an array of float64 and 8 x 8 x 3 is no image"),
    "an array with alpha": (lambda: row(np.zeros((8, 8, 4), np.uint8)), "uint8 and 8 x 8 x 4 is no image"),
    "an array without pixels": (lambda: row(np.zeros((0, 8, 3), np.uint8)), "empty"),
    "an object": (lambda: row(object()), "a value of type builtins.object is not read"),
    "no assistant turn": (lambda: [{"role": "user", "content": "Hello"}], "no token to learn"),
    "no turn": (lambda: [], "no turns"),
    "an image in an assistant's turn": (
        lambda: [{"role": "user", "content": "Draw"}, {"role": "assistant", "content": [{"type": "image", "image": PNG}]}],
        "an image in a turn of role 'assistant'",
    ),
    "an unknown role": (lambda: [{"role": "narrator", "content": "Once"}], "narrator"),
    "no content": (lambda: [{"role": "user"}], "'content'"),
    "an unknown part": (lambda: [{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}], "video"),
    "an address": (lambda: row("https://example.org/a.png"), "remote images are not allowed"),
    "more places than images": (
        lambda: {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "image"}]}], "images": [PNG]},
        "2 image placeholders, but 1 image",
    ),
    "an image in a field that nobody reads": (lambda: {"prompt": "What?", "completion": "Red", "photo": {"bytes": PNG}}, "photo"),
    "preference pairs": (lambda: {"prompt": "What?", "chosen": "Red", "rejected": "Blue"}, "without an answer"),
    "an unknown shape": (lambda: {"colour": "red"}, "colour"),
    "an empty row": (lambda: {}, "no fields"),
    "text for a row": (lambda: "hello", "a row is a dictionary or a list of messages, not str"),
    "nothing for a row": (lambda: None, "not NoneType"),
    "a field that is named by a number": (lambda: {"messages": [], 1: 2}, "named by int"),
    "half a character": (lambda: row(answer="\ud800"), "half a character"),
    "a row that holds itself": (endless, "levels deep"),
    "too many values": (lambda: {"messages": [[None] * 300_000]}, "more than 262144 values"),
    "a number beyond all bounds": (lambda: {"messages": [], "label": 10**400}, "too large"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_row_is_named_with_its_number_and_its_reason(collator, name):
    make, reason = BROKEN[name]
    with pytest.raises(RowError, match=reason) as raised:
        collator([row(PNG), make()])
    assert raised.value.row == 1
    assert str(raised.value).startswith("row 1 of the batch: ")
    assert isinstance(raised.value, (GardenError, ValueError))
    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.row, again.reason) == (1, raised.value.reason)


@pytest.mark.parametrize("batch", [[], (), {"messages": []}, "rows", None, 3])
def test_what_is_no_batch_is_refused(collator, batch):
    with pytest.raises(RowError):
        collator(batch)


def test_paths_lead_anywhere_until_folders_are_named(tiny_model, tmp_path):
    inside = tmp_path / "images"
    inside.mkdir()
    for path in [inside / "a.png", tmp_path / "b.png"]:
        path.write_bytes(PNG)
    collator = VisionCollator(tiny_model, image_roots=[inside], return_tensors="np")
    assert_same(collator([row("a.png")]), collator([row(inside / "a.png")]))
    for path in [tmp_path / "b.png", "../b.png"]:
        with pytest.raises(RowError, match="outside"):
            collator([row(path)])
    # What Python opened itself is not read by its path.
    image = pytest.importorskip("PIL.Image")
    with image.open(tmp_path / "b.png") as opened:
        collator([row(opened)])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"train_on": "everything"}, "train_on"),
        ({"selective_loss": "some"}, "selective_loss"),
        ({"on_long_row": "cut"}, "on_long_row"),
        ({"return_tensors": "tf"}, "return_tensors"),
        ({"min_pixels": 9000, "max_pixels": 4000}, "min must not exceed max"),
        ({"threads": 0}, "threads"),
        ({"threads": 10**6}, "threads"),
        ({"threads": 1.5}, "threads"),
        ({"threads": "two"}, "threads"),
        ({"image_roots": ["/no/such/folder"]}, "/no/such/folder"),
    ],
)
def test_a_wrong_setting_is_named(tiny_model, settings, reason):
    with pytest.raises(ConfigError, match=reason):
        VisionCollator(tiny_model, **settings)


def test_a_folder_that_is_no_model_is_named(tmp_path):
    for source in [tmp_path, tmp_path / "gone", "owner/model-that-nobody-has"]:
        with pytest.raises(ConfigError):
            VisionCollator(source)
    with pytest.raises(ConfigError, match="not from int"):
        VisionCollator(3)


class Changing(Mapping):
    """A message that changes the dictionary it is in when it is read."""

    def __init__(self, owner):
        self.owner = owner

    def __iter__(self):
        self.owner[f"new {len(self.owner)}"] = 1
        return iter(["role", "content"])

    def __getitem__(self, name):
        return {"role": "user", "content": "Hm?"}[name]

    def __len__(self):
        return 2


def test_a_row_that_changes_while_it_is_read_is_read_as_it_was(collator):
    answer = {"role": "assistant", "content": "Red"}
    changing = {"messages": [], "id": 7}
    changing["messages"] += [Changing(changing), answer]
    assert_same(collator([changing]), collator([[{"role": "user", "content": "Hm?"}, answer]]))
    assert len(changing) > 2, "or nothing was changed"


def test_ctrl_c_while_pillow_decodes_is_no_fault_of_the_row(tiny_model, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("model_garden.images.decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        VisionCollator(tiny_model, return_tensors="np", threads=1)([row(b"P6 56 56 255 " + bytes(56 * 56 * 3))])


def test_limits_that_transformers_would_take_from_the_tokenizer_are_not_passed_over(tiny_model, tmp_path):
    model = shutil.copytree(tiny_model, tmp_path / "model")
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**config, "max_pixels": 7056}))
    with pytest.raises(ConfigError, match="tokenizer_config.json says max_pixels 7056"):
        VisionCollator(model)
    VisionCollator(model, max_pixels=7056)


# PIL images, which stay as they are


@pytest.fixture
def pillow():
    return pytest.importorskip("PIL.Image")


def is_undecoded(image):
    return (image._im if hasattr(image, "_im") else image.im) is None


def test_a_thousand_batches_leave_lazy_images_undecoded(tiny_model, pillow, tmp_path):
    data = io.BytesIO()
    pillow.effect_noise((320, 240), 60).convert("RGB").save(data, "JPEG")
    (tmp_path / "a.jpg").write_bytes(data.getvalue())
    images = [pillow.open(io.BytesIO(data.getvalue())) if n % 2 else pillow.open(tmp_path / "a.jpg") for n in range(100)]
    small = VisionCollator(tiny_model, max_pixels=56 * 56, return_tensors="np")
    rows = [row(image) for image in images]
    places = [image.fp.tell() for image in images]
    for at in range(50):
        small(rows[at : at + 2])
    before = resident()
    for at in range(1000):
        small([rows[at % 100], rows[(at + 7) % 100]])
    assert all(is_undecoded(image) for image in images)
    assert [image.fp.tell() for image in images] == places
    # Decoded, they would hold 30 MB.
    assert resident() - before < 8_000_000


class Slow(io.BytesIO):
    """Gives less than it is asked for, as what comes from a network may."""

    def read(self, most=-1):
        return super().read(min(most, len(PNG) - 1) if most > 0 else most)


def as_file(kind, folder):
    path = folder / "a.png"
    path.write_bytes(PNG)
    if kind == "path":
        return path
    if kind == "BytesIO":
        return io.BytesIO(PNG)
    if kind == "open file":
        return open(path, "rb")
    if kind == "unbuffered file":
        return open(path, "rb", buffering=0)
    if kind in ("spooled", "rolled over"):
        file = tempfile.SpooledTemporaryFile(max_size=10 if kind == "rolled over" else 1 << 20)
    elif kind == "slow":
        return Slow(PNG)
    elif kind == "temporary":
        file = tempfile.NamedTemporaryFile()
    elif kind == "zip":
        with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(path, "a.png")
        return zipfile.ZipFile(folder / "a.zip").open("a.png")
    elif kind == "gzip":
        (folder / "a.gz").write_bytes(gzip.compress(PNG))
        return gzip.open(folder / "a.gz")
    elif kind == "tar":
        with tarfile.open(folder / "a.tar", "w") as archive:
            archive.add(path, "a.png")
        return tarfile.open(folder / "a.tar").extractfile("a.png")
    file.write(PNG)
    return file


@pytest.mark.parametrize(
    "kind", ["path", "BytesIO", "open file", "unbuffered file", "spooled", "rolled over", "temporary", "zip", "gzip", "tar", "slow"]
)
def test_a_file_behind_an_image_stays_where_it_was(collator, pillow, tmp_path, kind):
    image = pillow.open(as_file(kind, tmp_path))
    place = image.fp.tell()
    expected = collator([row(PNG)])
    for _ in range(2):
        assert_same(collator([row(image)]), expected)
        assert is_undecoded(image) and image.fp.tell() == place
    image.load()
    assert_same(collator([row(image)]), expected)


def test_a_path_that_was_deleted_or_replaced_after_opening_changes_nothing(collator, pillow, tmp_path):
    expected = collator([row(PNG)])
    for change in [os.remove, lambda path: os.replace(tmp_path / "other.png", path)]:
        path = tmp_path / "a.png"
        path.write_bytes(PNG)
        (tmp_path / "other.png").write_bytes(png(30, 40))
        image = pillow.open(path)
        change(path)
        assert_same(collator([row(image)]), expected)


def test_a_file_that_was_overwritten_or_closed_is_said(collator, pillow, tmp_path):
    path = tmp_path / "a.png"

    def opened():
        path.write_bytes(PNG)
        return pillow.open(path)

    overwritten = opened()
    path.write_bytes(png(30, 40))
    with pytest.raises(RowError, match="has changed since it was opened: it is 30x40 now and was 56x56"):
        collator([row(overwritten)])
    emptied = opened()
    path.write_bytes(b"")
    with pytest.raises(RowError, match="is empty now"):
        collator([row(emptied)])
    closed = opened()
    closed.close()
    assert_same(collator([row(closed)]), collator([row(PNG)]))
    os.remove(path)
    with pytest.raises(RowError, match="closed before it was decoded.*cannot be read again"):
        collator([row(closed)])
    nameless = pillow.open(io.BytesIO(PNG))
    nameless.fp.close()
    with pytest.raises(RowError, match="closed before it was decoded"):
        collator([row(nameless)])


def test_what_was_done_to_an_image_is_seen(collator, pillow):
    red = pillow.open(io.BytesIO(PNG))
    red.paste((0, 0, 255), (0, 0, 56, 56))
    assert_same(collator([row(red)]), collator([row(png(colour=(0, 0, 255)))]))
    assert_same(collator([row(pillow.open(io.BytesIO(PNG)).resize((28, 112)))]), collator([row(png(28, 112))]))


def test_a_truncated_image_is_taken_where_pillow_was_told_to(collator, pillow, monkeypatch):
    noise = pillow.effect_noise((200, 200), 90).convert("RGB")
    for kind in ["JPEG", "PNG"]:
        data = io.BytesIO()
        noise.save(data, kind)
        half = data.getvalue()[: data.tell() // 2]
        with pytest.raises(RowError, match=f"truncated {kind}"):
            collator([row(pillow.open(io.BytesIO(half)))])
        with monkeypatch.context() as patch:
            patch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)
            loaded, lazy = pillow.open(io.BytesIO(half)), pillow.open(io.BytesIO(half))
            loaded.load()
            assert_same(collator([row(lazy)]), collator([row(loaded)]))
            assert is_undecoded(lazy)


def test_frames_keep_their_place(collator, pillow):
    data = io.BytesIO()
    frames = [pillow.new("RGB", (56, 56), colour) for colour in ["red", "lime", "blue"]]
    frames[0].save(data, "GIF", save_all=True, append_images=frames[1:])
    image = pillow.open(data)
    for place, colour in [(1, (0, 255, 0)), (2, (0, 0, 255)), (0, (255, 0, 0))]:
        image.seek(place)
        assert_same(collator([row(image)]), collator([row(png(colour=colour))]))
        assert image.tell() == place


def test_one_image_in_many_threads(collator, pillow):
    file = tempfile.SpooledTemporaryFile()
    file.write(PNG)
    image = pillow.open(file)
    expected = collator([row(PNG)] * 3)
    with ThreadPoolExecutor(8) as threads:
        for batch in threads.map(lambda _: collator([row(image)] * 3), range(64)):
            assert_same(batch, expected)


# Processes and time


def _collate(collator, rows, results):
    results.put([collator(rows)["pixel_values"].sum() for _ in range(3)])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_of_its_own(collator, method):
    """The parent's threads are not in a forked child, nor are its locks to be trusted."""
    rows = [row(png(90, 60, (n, n, n))) for n in range(6)]
    expected = collator(rows)["pixel_values"].sum()
    context = multiprocessing.get_context(method)
    results = context.Queue()
    for _ in range(2):
        child = context.Process(target=_collate, args=(collator, rows, results))
        child.start()
        assert results.get(timeout=60) == [expected] * 3
        child.join(60)
        assert child.exitcode == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_while_other_threads_collate(collator):
    rows = [row(png(90, 60, (n, n, n))) for n in range(6)]
    expected = collator(rows)["pixel_values"].sum()
    context = multiprocessing.get_context("fork")
    done = threading.Event()

    def busy():
        while not done.is_set():
            collator(rows)

    others = [threading.Thread(target=busy) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for _ in range(10):
            results = context.SimpleQueue()
            child = context.Process(target=_collate, args=(collator, rows, results))
            child.start()
            child.join(60)
            assert child.exitcode == 0
            assert results.get() == [expected] * 3
    finally:
        done.set()
        for other in others:
            other.join()


def test_a_pickled_collator_gives_the_same(tiny_model):
    collator = VisionCollator(os.path.relpath(tiny_model), max_length=200, train_on="last", return_tensors="np")
    again = pickle.loads(pickle.dumps(collator))
    assert_same(again([row(PNG)]), collator([row(PNG)]))
    with pytest.raises(RowError, match="more than the 200"):
        again([row(answer="word " * 300)])


def test_ten_thousand_batches_leave_nothing_behind(collator):
    pillow = pytest.importorskip("PIL.Image")
    small = png(28, 28)
    lazy, broken = pillow.open(io.BytesIO(small)), row(PNG[:-20])
    rows = [row(small), row(lazy), row(question="Grün?", answer="Ja")]

    def batches(count):
        for _ in range(count):
            collator(rows)
            with pytest.raises(RowError):
                collator([broken])

    batches(1000)
    gc.collect()
    objects, memory = len(gc.get_objects()), resident()
    gc.disable()
    try:
        # Without the collector, a reference cycle a batch would show as thousands of objects.
        batches(9000)
        assert len(gc.get_objects()) - objects < 500
    finally:
        gc.enable()
    assert resident() - memory < 4_000_000


def test_a_text_of_the_dataset_gets_no_second_encoding(collator):
    """The interpreter keeps the UTF-8 form of a text that it was once asked for with the text."""
    import sys

    text = "ä" * 1000 + str(id(collator))
    before = sys.getsizeof(text)
    collator([row(question=text)])
    assert sys.getsizeof(text) == before


def test_a_processor_without_a_tokenizer_is_named(tiny_model):
    class Half:
        """Writes its files as HF's image processors do."""

        def save_pretrained(self, folder):
            shutil.copy(Path(tiny_model) / "preprocessor_config.json", folder)

    with pytest.raises(ConfigError, match="Half has no tokenizer: give the whole processor"):
        VisionCollator(Half())


def test_files_of_a_processor_object_are_gone_afterwards(tiny_model, tmp_path, monkeypatch):
    class Processor:
        """Writes its files as HF's processors do."""

        def save_pretrained(self, folder):
            for file in Path(tiny_model).iterdir():
                if file.suffix in (".json", ".jinja"):
                    (Path(folder) / file.name).write_bytes(file.read_bytes())

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    collator = VisionCollator(Processor(), return_tensors="np")
    assert list(tmp_path.iterdir()) == []
    collator([row(PNG)])
