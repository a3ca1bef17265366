"""Models that `merge` writes, loaded by transformers and bitsandbytes and held against PEFT's own arithmetic."""

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from peft import LoraConfig, PeftModel, get_peft_model
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoProcessor, BitsAndBytesConfig, Qwen2_5_VLForConditionalGeneration

TARGETS = r".*\.(qkv|q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)|.*visual\.blocks\.\d+\.attn\.proj"


@pytest.fixture(scope="module")
def folders(garden, tmp_path_factory):
    """A tiny base and an adapter that PEFT wrote, strong enough to be seen through 16 bits and through four."""
    folder = tmp_path_factory.mktemp("merge")
    garden("init", "--preset", "tiny", "--output", folder / "base", "--seed", 5)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder / "base")
    settings = LoraConfig(r=8, lora_alpha=12, use_rslora=True, target_modules=TARGETS, task_type="CAUSAL_LM")
    torch.manual_seed(0)
    model = get_peft_model(model, settings)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    model.save_pretrained(folder / "adapter")
    return folder


def logits(model, folder):
    processor = AutoProcessor.from_pretrained(folder)
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    image = Image.linear_gradient("L").resize((84, 112)).convert("RGB")
    batch = processor(text=[text], images=[image], return_tensors="pt")
    with torch.no_grad():
        return model(**batch).logits.float()


def distance(a, b):
    """The largest difference as a share of the logits' own spread."""
    return ((a - b).abs().max() / b.std()).item()


def load(folder, **more):
    model, report = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, output_loading_info=True, **more)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    for module in model.modules():
        # On processors with AVX512-BF16 bitsandbytes (0.50) repacks weights for another product, which refuses layers whose
        # outputs are not a multiple of 32 and rounds the scales to bf16. Its general product reads the codes as they are.
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False
    return model.eval()


def test_sixteen_bit_logits_are_those_of_base_and_adapter(garden, folders, tmp_path):
    garden("merge", "--base-model", folders / "base", "--adapter", folders / "adapter", "--output", tmp_path / "merged")
    base = load(folders / "base")
    without = logits(base, folders / "base")
    adapted = PeftModel.from_pretrained(base, folders / "adapter").eval()
    wanted = logits(adapted, folders / "base")
    # The merged weights are bf16, eight bits each; computing in f32 leaves only that rounding.
    found = logits(load(tmp_path / "merged", dtype=torch.float32), tmp_path / "merged")
    assert distance(found, wanted) < 0.05
    assert distance(without, wanted) > 1.0

    # Weight by weight it is what PEFT's merge gives, in bf16, but for sums that fall on the edge between two values.
    theirs = adapted.merge_and_unload().state_dict()
    ours = load(tmp_path / "merged").state_dict()
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        exact = theirs[name]
        assert weight.dtype == torch.bfloat16
        torch.testing.assert_close(weight.float(), exact, rtol=2**-8, atol=1e-7, msg=name)


@pytest.mark.parametrize("avx512_bf16", [False, True], ids=["this processor", "one with AVX512-BF16"])
def test_four_bits_are_those_of_bitsandbytes(garden, folders, tmp_path, monkeypatch, avx512_bf16):
    if avx512_bf16:
        monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: True)
    names = ["--base-model", folders / "base", "--adapter", folders / "adapter"]
    garden("merge", *names, "--output", tmp_path / "sixteen")
    garden("merge", *names, "--output", tmp_path / "four", "--save-as", "4bit")
    quantised_by_us = load(tmp_path / "four")
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=["lm_head", "model.visual.merger"],
    )
    quantised_on_load = load(tmp_path / "sixteen", quantization_config=settings, dtype=torch.bfloat16)
    kinds = {name: type(module).__name__ for name, module in quantised_by_us.named_modules()}
    assert sum(kind == "Linear4bit" for kind in kinds.values()) > 20
    assert kinds == {name: type(module).__name__ for name, module in quantised_on_load.named_modules()}
    ours, theirs = (logits(model, tmp_path / "four") for model in (quantised_by_us, quantised_on_load))
    assert distance(ours, theirs) < 0.02


def test_nothing_the_folder_needs_is_elsewhere(garden, folders, tmp_path):
    garden("merge", "--base-model", folders / "base", "--adapter", folders / "adapter", "--output", tmp_path / "merged")
    base, merged = ({file.name for file in folder.iterdir()} for folder in (folders / "base", tmp_path / "merged"))
    assert base <= merged
    assert load_file(tmp_path / "merged" / "model.safetensors").keys() == load_file(folders / "base" / "model.safetensors").keys()
