"""Models that `init` makes, as Hugging Face sees them."""

import json

import pytest
import torch
from PIL import Image
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

MESSAGES = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What's in this image, l'été? 12,345 naïve 日本語"}]},
    {"role": "assistant", "content": "A red circle.\n\n  Two  spaces."},
]


@pytest.fixture(scope="session")
def tiny(garden, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    garden("init", "--preset", "tiny", "--output", folder, "--seed", 3)
    return folder


def test_the_model_loads_whole(tiny):
    model, report = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert 1.5e6 < sum(p.numel() for p in model.parameters()) < 1.8e6
    weight = model.model.language_model.layers[0].mlp.up_proj.weight
    assert weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert (model.model.language_model.norm.weight == 1).all()


def test_the_processor_makes_batches_the_model_takes(tiny):
    processor = AutoProcessor.from_pretrained(tiny)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny)
    text = processor.apply_chat_template(MESSAGES, add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|vision_start|>")
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    batch = processor(text=[text], images=[Image.new("RGB", (100, 60), "red")], return_tensors="pt")
    assert (batch["input_ids"] == model.config.image_token_id).sum() == batch["image_grid_thw"].prod() // 4
    assert batch["input_ids"].max() < model.config.text_config.vocab_size
    with torch.no_grad():
        assert torch.isfinite(model(**batch).logits).all()


def test_the_tokenizer_gives_back_what_it_was_given(tiny):
    tokenizer = AutoProcessor.from_pretrained(tiny).tokenizer
    for text in ["Hello world", "  spaces\n\n\ttabs ", "naïve 日本語 🙂", '{"a": [1, 2.5, null]}', "don't I'LL"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(" the image shows a red circle")) <= 8


def test_the_same_seed_gives_the_same_model(garden, tiny, tmp_path):
    again, other = tmp_path / "again", tmp_path / "other"
    garden("init", "--preset", "tiny", "--output", again, "--seed", 3)
    garden("init", "--preset", "tiny", "--output", other, "--seed", 4)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (tiny, again, other)]
    assert weights[0] == weights[1] != weights[2]
    assert json.loads((tiny / "config.json").read_text()) == json.loads((again / "config.json").read_text())
