"""HF's side of `bench/train_step.py`: transformers with PEFT (and bitsandbytes) in training, a step when it is told to.

    python bench/train_step_hf.py MODEL ADAPTER BATCH f32|nf4|nf4-reference keep|recompute THREADS

Writes a fresh adapter to ADAPTER for our side to begin from, then answers every line on its standard input with a line of JSON.
`nf4-reference` is HF in f32 on the values that bitsandbytes' 4-bit codes stand for, looked up with plain tensor operations:
bitsandbytes' own dequantisation on a CPU is wrong for some shapes (see `bench/README.md`), so the loss is checked against this.
"""

import json, resource, sys, time

import torch

MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073])
DEVIATION = torch.tensor([0.26862954, 0.26130258, 0.27577711])
TARGETS = r"model\.language_model\.layers\.\d+\.(self_attn\.(q_proj|k_proj|v_proj|o_proj)|mlp\.(gate_proj|up_proj|down_proj))"
UNQUANTISED = ("lm_head", "merger", "patch_embed")


def load(folder, precision):
    from transformers import BitsAndBytesConfig, Qwen2_5_VLForConditionalGeneration

    options = {}
    if precision == "nf4":
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
            llm_int8_skip_modules=list(UNQUANTISED),
        )
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa", **options
    )
    if precision == "nf4-reference":
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and not any(part in name for part in UNQUANTISED):
                module.weight.data = dequantised(module.weight.data)
    return model


def dequantised(weight):
    """The values of the weight's codes, by the definition of the format."""
    from bitsandbytes.functional import quantize_4bit

    packed, state = quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    packed, nested = packed.flatten(), state.state2
    codes = torch.stack([packed >> 4, packed & 15], 1).flatten()[: weight.numel()].long()
    blocks = torch.arange(len(state.absmax)) // nested.blocksize
    scales = nested.code[state.absmax.long()] * nested.absmax[blocks] + state.offset
    return (state.code[codes] * scales.repeat_interleave(64)[: weight.numel()]).view_as(weight)


def inputs(folder, device_config):
    batch = json.load(open(f"{folder}/batch.json"))
    ids, labels = torch.tensor(batch["rows"]), torch.tensor(batch["labels"])
    patches = torch.frombuffer(bytearray(open(f"{folder}/patches.bin", "rb").read()), dtype=torch.uint8)
    pixels = patches.view(-1, 3, 1, 196).float()
    pixels = (pixels - MEAN.view(3, 1, 1) * 255) / (DEVIATION.view(3, 1, 1) * 255)
    return dict(
        input_ids=ids,
        labels=labels,
        attention_mask=torch.ones_like(ids),
        pixel_values=pixels.expand(-1, 3, 2, 196).reshape(len(pixels), -1),
        image_grid_thw=torch.tensor(batch["grids"]),
        mm_token_type_ids=(ids == device_config.image_token_id).long(),
    )


def main():
    folder, adapter, batch, precision, recompute, threads = sys.argv[1:]
    from peft import LoraConfig, get_peft_model

    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    began = time.perf_counter()
    model = get_peft_model(load(folder, precision), LoraConfig(r=16, lora_alpha=16, target_modules=TARGETS))
    if recompute == "recompute":
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    load_s = time.perf_counter() - began
    model.save_pretrained(adapter)
    batch = inputs(batch, model.config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, weight_decay=0.01)
    print(json.dumps({"load_s": load_s}), flush=True)
    for line in map(str.strip, sys.stdin):
        if line == "step":
            began, processor = time.perf_counter(), time.process_time()
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            seconds, processor = time.perf_counter() - began, time.process_time() - processor
            answer = {"seconds": seconds, "processor_s": processor, "loss": loss.item()}
        else:
            answer = {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
