"""The peer: Hugging Face's Trainer with a PEFT adapter, over rows as `model-garden dataset create` writes them.

    python bench/hf_trainer.py --model DIR --dataset rows.jsonl --output DIR [...]

It is written as such scripts are: a list of images that open lazily, a collator that calls the processor, and a Trainer
with its own progress bar. `--private-copies` decodes into a copy that dies with its batch instead; `--adapter` and `--order` give the
first values and the order of rows that another trainer has.
"""

import argparse
import base64
import io
import json
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from PIL import Image
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration, Trainer, TrainingArguments, set_seed


def read_rows(path):
    """Questions, answers and opened images; nothing is decoded yet."""
    rows = []
    with open(path) as lines:
        for line in lines:
            user, assistant = json.loads(line)["messages"]
            image, question = user["content"]
            if image["type"] == "image_url":
                source = io.BytesIO(base64.b64decode(image["image_url"]["url"].split(",", 1)[1]))
            else:
                source = Path(path).parent / image["image"]
            rows.append({"image": Image.open(source), "question": question["text"], "answer": assistant["content"]})
    return rows


class PrivateCopies(torch.utils.data.Dataset):
    """The cure: what is decoded belongs to the batch, not to the list."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        source = row["image"].fp
        source.seek(0)
        return {**row, "image": Image.open(io.BytesIO(source.read()))}


def conversation(row, with_answer=True):
    user = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": row["question"]}]}
    return [user, {"role": "assistant", "content": row["answer"]}] if with_answer else [user]


class Collator:
    """Rows to a padded batch; labels are the answer and the token that ends it."""

    def __init__(self, processor):
        self.processor = processor
        self.end = processor.tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.start = processor.tokenizer.convert_tokens_to_ids("<|im_start|>")

    def __call__(self, rows):
        texts = [self.processor.apply_chat_template(conversation(row)) for row in rows]
        batch = self.processor(text=texts, images=[row["image"] for row in rows], padding=True, return_tensors="pt")
        labels = torch.full_like(batch["input_ids"], -100)
        heading = len(self.processor.tokenizer.encode("<|im_start|>assistant\n"))
        for ids, wanted in zip(batch["input_ids"], labels):
            begin = (ids == self.start).nonzero()[-1].item() + heading
            end = (ids == self.end).nonzero()[-1].item() + 1
            wanted[begin:end] = ids[begin:end]
        return {**batch, "labels": labels}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--lr-scheduler-type", default="linear")
    parser.add_argument("--warmup-steps", type=int, default=0)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--lora-r", type=int, default=16)
    parser.add_argument("--lora-alpha", type=int, default=16)
    parser.add_argument("--max-pixels", type=int)
    parser.add_argument("--logging-steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=3407)
    parser.add_argument("--private-copies", action="store_true")
    parser.add_argument("--adapter", help="begin with this one")
    parser.add_argument("--order", help="a file with the numbers of the rows to read, in order")
    options = parser.parse_args()

    set_seed(options.seed)
    processor = AutoProcessor.from_pretrained(options.model)
    if options.max_pixels:
        processor.image_processor.size["longest_edge"] = options.max_pixels
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(options.model)
    # Attention and MLPs of both towers, as our trainer adapts them.
    targets = r".*(language_model\.layers|visual\.blocks)\..*\.(qkv|proj|q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
    adapter = LoraConfig(r=options.lora_r, lora_alpha=options.lora_alpha, target_modules=targets, task_type="CAUSAL_LM")
    if options.adapter:
        model = PeftModel.from_pretrained(model, options.adapter, is_trainable=True)
    else:
        model = get_peft_model(model, adapter)
    model.print_trainable_parameters()

    rows = read_rows(options.dataset)
    if options.order:
        rows = [rows[number] for number in json.loads(Path(options.order).read_text())]
    arguments = TrainingArguments(
        output_dir=options.output,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        lr_scheduler_type=options.lr_scheduler_type,
        warmup_steps=options.warmup_steps,
        logging_steps=options.logging_steps,
        save_strategy="no",
        report_to="none",
        remove_unused_columns=False,
        use_cpu=True,
        seed=options.seed,
        train_sampling_strategy="sequential" if options.order else "random",
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=PrivateCopies(rows) if options.private_copies else rows,
        data_collator=Collator(processor),
    )
    trainer.train()
    trainer.save_state()
    model.save_pretrained(options.output)


if __name__ == "__main__":
    main()
