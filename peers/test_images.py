"""Our image processor and text encoder live against HF's, on images and texts that differ from run to run.

The seed is printed by pytest on failure; GARDEN_SEED repeats a run.
"""

import json, os, random, subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile
from transformers import AutoTokenizer, Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor
from transformers.image_utils import load_image

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = Path(os.environ["MODEL_GARDEN_BIN"]).parent / "examples" / "images"
CHECKPOINT = ROOT / "crates/data/tests/goldens/checkpoint"
LIMITS = {"min_pixels": 3136, "max_pixels": 400 * 784}
SEED = int(os.environ.get("GARDEN_SEED", random.SystemRandom().randrange(1 << 30)))
# Pillow guesses how long a JPEG will be, and fails to write one of noise with many restart markers that is longer.
ImageFile.MAXBLOCK = 1 << 24


@pytest.fixture(scope="module")
def ask():
    """Sends our example a request and reads its answer."""
    command = [EXAMPLE, str(CHECKPOINT), str(LIMITS["min_pixels"]), str(LIMITS["max_pixels"])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(request):
        print(json.dumps(request), file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())

    yield ask
    process.stdin.close()
    process.wait()


def picture(rng):
    """Some size, some smoothness, some noise."""
    width, height = (int(2 ** rng.uniform(3, 10.3)) for _ in range(2))
    width, height = min(width, 60 * height), min(height, 60 * width)
    coarse = rng.integers(0, 256, (int(rng.integers(1, 12)), int(rng.integers(1, 12)), 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.BICUBIC)).astype(float)
    noisy = smooth + rng.normal(0, rng.uniform(0, 40), smooth.shape)
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def encodings(rng, image):
    """The image in formats drawn at random, with the name of each."""
    exif = Image.Exif()
    exif[0x0112] = int(rng.integers(0, 10))
    jpeg = dict(
        quality=int(rng.integers(1, 101)),
        subsampling=int(rng.integers(0, 3)),
        progressive=bool(rng.integers(2)),
        optimize=bool(rng.integers(2)),
        exif=exif,
    )
    if rng.integers(2):
        jpeg["restart_marker_blocks"] = int(rng.integers(1, 20))
    mode = str(rng.choice(["RGB", "L", "CMYK"]))
    yield f"JPEG {mode} {jpeg}", image.convert(mode), dict(format="JPEG", **jpeg)
    mode = str(rng.choice(["RGB", "RGBA", "L", "LA", "P", "1"]))
    yield f"PNG {mode}", image.convert(mode), dict(format="PNG", exif=exif)
    quality = int(rng.integers(0, 101))
    yield f"WebP {quality}", image, dict(format="WEBP", quality=quality, lossless=bool(rng.integers(2)), exif=exif)
    yield "BMP", image, dict(format="BMP")
    yield "GIF", image.quantize(int(rng.integers(2, 257))), dict(format="GIF")
    yield "TIFF", image, dict(format="TIFF", compression=str(rng.choice(["raw", "tiff_lzw", "tiff_adobe_deflate"])))


def test_images_are_hfs_to_the_last_bit(ask, tmp_path):
    rng = np.random.default_rng(SEED)
    processor = Qwen2VLImageProcessor.from_pretrained(CHECKPOINT, **LIMITS)
    file, output = tmp_path / "image", tmp_path / "values"
    for index in range(40):
        for name, image, how in encodings(rng, picture(rng)):
            image.save(file, **how)
            where = f"seed {SEED}, image {index}, {image.size}, {name}"
            upright = Image.fromarray(np.array(load_image(str(file))))  # without "info", see goldens/make.py
            expected = processor(images=[upright], return_tensors="np")
            answer = ask({"process": str(file), "output": str(output)})
            assert answer.get("grid") == expected["image_grid_thw"][0].tolist(), f"{where}: {answer}"
            values = np.fromfile(output, dtype="<f4").reshape(expected["pixel_values"].shape)
            difference = np.abs(values - expected["pixel_values"]).max()
            assert difference <= 1e-6, f"{where}: differs by {difference}"


ALPHABET = list("abcdefghij KLMNO\n\n\t  .,:;'\"!?0123456789<|>{}[]()/\\-_äöüßéñçøàЖдщ猫写真の图片한국어👩‍👧🤷🏽½٣\u0301\u200b\u00a0\r")
WORDS = ["don't", "I'M", "they'll", "image", "the", " picture", "\n\n\n", "    ", "<image>", "<tool_call>", "</tool_call>", "3.14"]


def words(rng):
    count = int(rng.integers(0, 30))
    return "".join(str(rng.choice(ALPHABET if rng.integers(3) else WORDS)) for _ in range(count))


def test_ids_and_labels_are_hfs(ask):
    rng = np.random.default_rng(SEED)
    processor = Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor.from_pretrained(CHECKPOINT),
        tokenizer=AutoTokenizer.from_pretrained(CHECKPOINT),
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=(CHECKPOINT / "chat_template.jinja").read_text(),
    )
    for index in range(300):
        messages = [{"role": "system", "content": words(rng)}] if rng.integers(2) else []
        for _ in range(int(rng.integers(1, 4))):
            messages += [{"role": "user", "content": words(rng)}, {"role": "assistant", "content": words(rng)}]
        expected = processor.apply_chat_template(
            [messages], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        turns = [{"role": m["role"], "parts": [{"text": m["content"]}]} for m in messages]
        answer = ask({"encode": {"turns": turns}, "image_tokens": []})
        where = f"seed {SEED}, conversation {index}: {messages}"
        assert answer.get("ids") == list(expected["input_ids"][0]), f"{where}: {answer}"
        assert answer["trained"] == [bool(flag) for flag in expected["assistant_masks"][0]], where
