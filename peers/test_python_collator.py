"""The collator beside HF's own processor: the same rows give the same keys, shapes, types and values."""

import base64
import io
import json
import multiprocessing
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from transformers import AddedToken, AutoProcessor
from transformers.models.glm4v import Glm4vImageProcessor

from model_garden import ConfigError, RowError, VisionCollator, VisionDataset

IMAGES = Path(__file__).parents[1] / "crates/data/tests/goldens/images"
ALL = sorted(path.name for path in IMAGES.iterdir())
KEYS = ["input_ids", "attention_mask", "mm_token_type_ids", "pixel_values", "image_grid_thw"]


@pytest.fixture(scope="module")
def model(garden, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    garden("init", "--preset", "tiny", "--output", folder)
    return folder


@pytest.fixture(scope="module")
def processor(model):
    return AutoProcessor.from_pretrained(model)


@pytest.fixture(scope="module")
def collator(model):
    return VisionCollator(model)


def question(*images, text="What is this?", answer="A lake."):
    parts = [{"type": "image", "image": image} for image in images]
    return [
        {"role": "user", "content": [*parts, {"type": "text", "text": text}]},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
    ]


def by_hf(processor, conversations):
    """What HF's processor gives, with labels on what the assistant says and on the token that ends its turn."""
    kwargs = {"padding": True, "padding_side": "right"}
    batch = dict(
        processor.apply_chat_template(
            conversations, tokenize=True, return_dict=True, return_tensors="pt", processor_kwargs=kwargs
        )
    )
    tokenizer = processor.tokenizer
    opening = tokenizer.encode("<|im_start|>assistant\n")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    batch["labels"] = torch.full_like(batch["input_ids"], -100)
    for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"]):
        at = 0
        while at < len(ids):
            if ids[at : at + len(opening)] == opening:
                at += len(opening)
                stop = ids.index(end, at) + 1
                labels[at:stop] = torch.tensor(ids[at:stop])
                at = stop
            at += 1
    return batch


def assert_same(ours, theirs):
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype, name
        assert ours[name].shape == value.shape, name
        assert torch.equal(ours[name], value), name


def readable(name):
    try:
        with Image.open(IMAGES / name) as image:
            image.convert("RGB")
        return max(image.size) <= 200 * min(image.size)
    except Exception:
        return False


@pytest.mark.parametrize("name", [name for name in ALL if readable(name)])
def test_a_lazy_pil_image_gives_what_hf_gives_and_stays_undecoded(collator, processor, name):
    image = Image.open(IMAGES / name)
    ours = collator([{"messages": question(image)}])
    assert image._im is None or image.tile, "still lazy"
    with Image.open(IMAGES / name) as again:
        theirs = by_hf(processor, [question(again)])
    assert_same(ours, theirs)


@pytest.mark.parametrize("name", [name for name in ALL if readable(name)])
def test_a_decoded_pil_image_gives_what_hf_gives(collator, processor, name):
    image = Image.open(IMAGES / name)
    image.load()
    assert_same(collator([{"messages": question(image)}]), by_hf(processor, [question(image)]))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV", "I;16", "I", "F"])
def test_every_mode_gives_what_hf_gives(collator, processor, mode):
    image = Image.open(IMAGES / "photo.jpg").crop((0, 0, 120, 90))
    if mode == "RGBa":
        image.putalpha(Image.linear_gradient("L").resize(image.size))
    image = image.convert("L").convert("I;16") if mode == "I;16" else image.convert(mode)
    assert image.mode == mode
    assert_same(collator([{"messages": question(image)}]), by_hf(processor, [question(image)]))


def test_palettes_and_transparency_of_every_kind_are_on_white_as_in_hf(collator, processor, tmp_path):
    base = Image.open(IMAGES / "photo.jpg").crop((0, 0, 90, 60))
    alpha = Image.linear_gradient("L").resize(base.size)
    rgba = base.copy()
    rgba.putalpha(alpha)
    base.convert("P").save(tmp_path / "transparent.png", transparency=3)
    base.save(tmp_path / "key.png", transparency=base.getpixel((0, 0)))
    rgba.save(tmp_path / "rgba.webp", lossless=True)
    rgba.save(tmp_path / "rgba.png")
    rgba.convert("LA").save(tmp_path / "la.png")
    for path in sorted(tmp_path.iterdir()):
        image = Image.open(path)
        ours = collator([question(image)])
        assert image._im is None, path
        assert_same(ours, by_hf(processor, [question(Image.open(path))]))


def test_exif_turns_a_file_but_not_an_opened_image_as_in_hf(collator, processor):
    for name in ["exif-6.jpg", "exif-6.png", "exif-8.webp", "exif-2.jpg"]:
        path = str(IMAGES / name)
        stored, upright = Image.open(path), ImageOps.exif_transpose(Image.open(path))
        assert_same(collator([question(stored)]), by_hf(processor, [question(Image.open(path))]))
        for spelled in [path, Path(path), Path(path).read_bytes(), {"bytes": Path(path).read_bytes(), "path": None}]:
            assert_same(collator([question(spelled)]), by_hf(processor, [question(upright)]))
        # HF's own loading of a path, which goes through torchvision: that leaves WebP as it is stored.
        if name.endswith("webp"):
            continue
        assert_same(collator([question(path)]), by_hf(processor, [question(path)]))


def test_a_mixed_batch_is_padded_on_the_right(collator, processor):
    photo, small, wide = (Image.open(IMAGES / name) for name in ["photo.jpg", "rgb.png", "odd-420.jpg"])
    rows = [
        question(photo, small, text="Compare these two."),
        question(text="Why is the sky blue?", answer="Because of Rayleigh scattering of sunlight."),
        [
            {"role": "system", "content": [{"type": "text", "text": "Answer in one word."}]},
            *question(wide, answer="A"),
            *question(small, wide, photo, text="And these?", answer="Three"),
        ],
    ]
    assert_same(collator([{"messages": row} for row in rows]), by_hf(processor, rows))


def test_text_alone_has_no_image_keys(collator, processor):
    rows = [question(text="Hello", answer="Hi"), question(text="How are you doing today?", answer="Well.")]
    ours = collator(rows)
    assert_same(ours, by_hf(processor, rows))
    assert "pixel_values" not in ours


def test_each_way_to_write_an_image_gives_the_same(collator):
    path = IMAGES / "photo.jpg"
    data = path.read_bytes()
    text = base64.b64encode(data).decode()
    image = Image.open(path)
    expected = collator([question(image)])
    for spelled in [str(path), path, data, bytearray(data), memoryview(data), text, f"data:image/jpeg;base64,{text}", {"path": str(path)},
                    {"bytes": data, "path": None}, Image.open(io.BytesIO(data)), np.asarray(image.convert("RGB"))]:
        assert_same(collator([question(spelled)]), expected)
    url = {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{text}"}}
    row = question(image)
    row[0]["content"][0] = url
    assert_same(collator([row]), expected)


def test_tensors_of_torchvision_give_what_hf_gives(collator, processor):
    pixels = torch.from_numpy(np.array(Image.open(IMAGES / "photo.jpg").convert("RGB")))
    for tensor in [pixels, pixels.permute(2, 0, 1), pixels.permute(2, 0, 1).contiguous()]:
        assert_same(collator([question(tensor)]), by_hf(processor, [question(tensor)]))
    with pytest.raises(RowError, match="row 0 of the batch: an array of float32 and .* is no image"):
        collator([question(pixels / 255)])


def test_rows_of_trl(collator, processor):
    image, other = Image.open(IMAGES / "photo.jpg"), Image.open(IMAGES / "rgb.png")
    expected = by_hf(processor, [question(image, other)])
    plain = [{"role": "user", "content": "What is this?"}, {"role": "assistant", "content": "A lake."}]
    placed = question(None, None)
    for messages in [plain, placed]:
        assert_same(collator([{"messages": messages, "images": [image, other]}]), expected)
    for messages in [plain, placed]:
        row = {"prompt": messages[:1], "completion": messages[1:], "images": [image, other]}
        assert_same(collator([row]), expected)


def test_a_changed_image_gives_its_changed_pixels(collator, processor):
    image = Image.open(IMAGES / "photo.jpg")
    for changed in [image.resize((100, 70)), image.crop((5, 5, 90, 80)), image.rotate(90, expand=True), image.convert("L")]:
        assert_same(collator([question(changed)]), by_hf(processor, [question(changed)]))
    for change in [lambda it: it.paste((255, 0, 0), (0, 0, 20, 20)), lambda it: it.thumbnail((64, 64)), lambda it: it.putpixel((1, 1), (9, 9, 9))]:
        changed = Image.open(IMAGES / "photo.jpg")
        change(changed)
        assert_same(collator([question(changed)]), by_hf(processor, [question(changed)]))


def test_a_drafted_image_is_as_small_as_it_says(collator, processor):
    drafted, again = Image.open(IMAGES / "photo.jpg"), Image.open(IMAGES / "photo.jpg")
    for image in [drafted, again]:
        image.draft("L", (image.width // 2, image.height // 2))
    ours = collator([question(drafted)])
    assert drafted._im is None
    assert_same(ours, by_hf(processor, [question(again)]))


def as_jpeg(width, height, kind="JPEG", **options):
    data = io.BytesIO()
    Image.radial_gradient("L").resize((width, height)).convert("RGB").save(data, kind, **options)
    return data.getvalue()


def test_drafts_of_every_size_are_those_of_hf(collator, processor):
    for width, height in [(101, 67), (99, 200), (17, 15), (333, 15), (8, 8)]:
        data = as_jpeg(width, height)
        for scale in [1, 2, 3, 4, 8, 9]:
            drafted, again = (Image.open(io.BytesIO(data)) for _ in range(2))
            for image in [drafted, again]:
                image.draft("RGB", (max(1, width // scale), max(1, height // scale)))
            assert_same(collator([question(drafted)]), by_hf(processor, [question(again)]))
            assert drafted._im is None


def test_what_is_set_before_decoding_counts_as_in_hf(collator, processor):
    palette = io.BytesIO()
    Image.radial_gradient("L").resize((60, 50)).convert("RGB").quantize(16).save(palette, "PNG", transparency=3)

    def opened(data, change):
        image = Image.open(io.BytesIO(data))
        change(image)
        return image

    changes = [
        (palette.getvalue(), lambda image: image.info.pop("transparency")),
        (palette.getvalue(), lambda image: image.info.update(transparency=5)),
        (as_jpeg(256, 200, "JPEG2000", num_resolutions=4), lambda image: None),
        (as_jpeg(256, 200, "JPEG2000", num_resolutions=4), lambda image: setattr(image, "reduce", 2)),
    ]
    for data, change in changes:
        image = opened(data, change)
        ours = collator([question(image)])
        assert image._im is None
        assert_same(ours, by_hf(processor, [question(opened(data, change))]))


def test_the_frame_that_an_image_stands_at_is_used(collator, processor, tmp_path):
    frames = [Image.new("RGB", (60, 60), colour) for colour in ["red", "green", "blue"]]
    for name in ["a.gif", "a.webp", "a.png", "a.tif"]:
        options = {"lossless": True} if name.endswith("webp") else {}
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], **options)
        for place in [0, 2, 1]:
            image, again = Image.open(tmp_path / name), Image.open(tmp_path / name)
            image.seek(place)
            again.seek(place)
            assert_same(collator([question(image)]), by_hf(processor, [question(again)]))


@pytest.mark.parametrize("ending", ["avif", "ico", "tga", "jp2", "ppm", "pcx"])
def test_a_format_that_only_pillow_knows(collator, processor, tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    try:
        Image.open(IMAGES / "photo.jpg").convert("RGB").resize((64, 64)).save(path)
    except (OSError, KeyError, ValueError):
        pytest.skip("this Pillow does not write it")
    image = Image.open(path)
    was_lazy = image._im is None
    ours = collator([question(image)])
    # Pillow itself decodes an icon when it opens it.
    assert was_lazy == (image._im is None)
    theirs = by_hf(processor, [question(Image.open(path))])
    assert_same(ours, theirs)
    if ending != "ico":
        # An icon is transparent to HF, which shows a PIL image on white and a file without its transparency.
        assert_same(collator([question(str(path))]), theirs)


def test_an_image_inside_an_archive(collator, processor, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(IMAGES / "photo.jpg", "a.jpg")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive, archive.open("a.jpg") as member:
        image = Image.open(member)
        place = member.tell()
        ours = collator([question(image)])
        assert (member.tell(), image._im) == (place, None)
        assert_same(ours, by_hf(processor, [question(Image.open(IMAGES / "photo.jpg"))]))


def test_a_processor_object_is_taken_as_it_is_now(model, processor):
    processor = AutoProcessor.from_pretrained(model, min_pixels=28 * 28, max_pixels=20 * 28 * 28)
    processor.image_processor.image_mean = [0.5, 0.4, 0.3]
    processor.chat_template = processor.chat_template.replace("You are a helpful assistant.", "You see.")
    row = question(Image.open(IMAGES / "photo.jpg"))
    ours = VisionCollator(processor)([row])
    assert_same(ours, by_hf(processor, [row]))
    again = pickle.loads(pickle.dumps(VisionCollator(processor)))
    assert_same(again([row]), ours)


@pytest.mark.parametrize("edges", [{}, {"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"single_word": True}])
@pytest.mark.parametrize("special", [True, False])
def test_added_tokens_are_found_as_in_hf(model, edges, special):
    processor = AutoProcessor.from_pretrained(model)
    processor.tokenizer.add_tokens([AddedToken("<loc>", special=special, **edges)], special_tokens=special)
    rows = [question(text="At <loc> \n <loc>, é<loc> <loc>_", answer=" <loc> it <loc> "), question(text="<loc>", answer="<loc>s")]
    ours, theirs = VisionCollator(processor)(rows), by_hf(processor, rows)
    # A token that takes the line break of the template with it hides where the answer begins from `by_hf`.
    del ours["labels"], theirs["labels"]
    assert_same(ours, theirs)


def test_another_family_with_the_same_settings_is_refused(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    Glm4vImageProcessor().save_pretrained(folder)
    with pytest.raises(ConfigError, match="not as Glm4vImageProcessor does"):
        VisionCollator(folder)


def test_without_limits_images_are_as_large_as_in_hf(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    path = folder / "preprocessor_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in config.items() if not name.endswith("_pixels")}))
    row = question(Image.new("RGB", (1500, 1500)))
    assert_same(VisionCollator(folder)([row]), by_hf(AutoProcessor.from_pretrained(folder), [row]))


def test_a_tokenizer_brings_the_image_processor_of_its_folder(model, processor, collator):
    row = question(Image.open(IMAGES / "photo.jpg"))
    assert_same(VisionCollator(processor.tokenizer)([row]), collator([row]))


def test_limits_of_the_user_are_those_of_hf(model):
    limits = {"min_pixels": 28 * 28, "max_pixels": 12 * 28 * 28}
    row = question(Image.open(IMAGES / "photo.jpg"))
    assert_same(VisionCollator(model, **limits)([row]), by_hf(AutoProcessor.from_pretrained(model, **limits), [row]))


def test_tensors_own_their_memory_and_can_be_written(collator):
    batch = collator([question(IMAGES / "photo.jpg")])
    batch["pixel_values"].mul_(0)
    batch["labels"][batch["labels"] == 1] = 2
    assert batch["pixel_values"].is_contiguous() and not batch["pixel_values"].any()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(model, garden, tmp_path, method):
    garden("dataset", "create", "--kind", "shapes", "--rows", 12, "--size", "56x56", "--output", tmp_path / "rows")
    dataset, collator = VisionDataset(tmp_path / "rows"), VisionCollator(model, threads=2)
    expected = [collator(dataset[at : at + 3]) for at in range(0, 12, 3)]
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=3, collate_fn=collator, num_workers=2, multiprocessing_context=multiprocessing.get_context(method)
    )
    for _ in range(2):
        for ours, theirs in zip(loader, expected, strict=True):
            assert_same(ours, theirs)


def test_an_error_of_a_worker_says_which_row(model, tmp_path):
    rows = [question(text="Hi"), question(tmp_path / "gone.jpg")]
    loader = torch.utils.data.DataLoader(rows, batch_size=2, collate_fn=VisionCollator(model), num_workers=1)
    with pytest.raises(RowError, match="row 1 of the batch.*gone.jpg"):
        list(loader)


def test_an_image_column_of_datasets(collator, processor):
    datasets = pytest.importorskip("datasets")
    paths = [str(IMAGES / name) for name in ["photo.jpg", "rgb.png", "exif-6.jpg"]]
    features = datasets.Features({"messages": [{"role": datasets.Value("string"), "content": datasets.Value("string")}], "images": [datasets.Image()]})
    plain = [{"role": "user", "content": "What is this?"}, {"role": "assistant", "content": "A lake."}]
    rows = datasets.Dataset.from_dict({"messages": [plain] * 3, "images": [[path] for path in paths]}, features=features)
    upright = [ImageOps.exif_transpose(Image.open(path)) for path in paths]
    expected = by_hf(processor, [question(image) for image in upright])
    assert_same(collator([rows[at] for at in range(3)]), expected)
    undecoded = rows.cast_column("images", [datasets.Image(decode=False)])
    assert_same(collator([undecoded[at] for at in range(3)]), expected)
    for form in ["numpy", "torch"]:
        formatted = rows.with_format(form)
        assert_same(collator([formatted[at] for at in range(3)]), expected)
