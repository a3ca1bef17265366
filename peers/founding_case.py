"""The founding case as a script of its users: a list of lazily opened photos, a collator, and Hugging Face's Trainer with our callback.

    python peers/founding_case.py --model DIR --rows rows.jsonl --output DIR --collator usual|garden

Both collators get the same rows in the same order. The usual one decodes the images that the list holds; ours decodes private copies.
Prints one JSON object: the losses, the verdict, what was said before, and who holds the memory.
"""

import argparse
import base64
import io
import json

import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration, Trainer, TrainingArguments, set_seed

from model_garden import VisionCollator
from model_garden.hf import MemoryMonitorCallback


class ListDataset(torch.utils.data.Dataset):
    """Rows in a list, with images that are decoded when somebody first looks at them."""

    def __init__(self, path):
        self.rows = []
        with open(path) as lines:
            for line in lines:
                user, assistant = json.loads(line)["messages"]
                image, question = user["content"]
                encoded = base64.b64decode(image["image_url"]["url"].split(",", 1)[1])
                shown = [{"type": "image", "image": Image.open(io.BytesIO(encoded))}, question]
                answer = [{"type": "text", "text": assistant["content"]}]
                self.rows.append({"messages": [{"role": "user", "content": shown}, {"role": "assistant", "content": answer}]})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class UsualCollator:
    """What scripts do: the processor gets the row's own images, and the answer is what is learned."""

    def __init__(self, processor):
        self.processor = processor
        self.start, self.end = processor.tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
        self.heading = len(processor.tokenizer.encode("<|im_start|>assistant\n"))

    def __call__(self, rows):
        texts = [self.processor.apply_chat_template(row["messages"]) for row in rows]
        images = [part["image"] for row in rows for part in row["messages"][0]["content"] if part["type"] == "image"]
        batch = self.processor(text=texts, images=images, padding=True, return_tensors="pt")
        labels = torch.full_like(batch["input_ids"], -100)
        for ids, wanted in zip(batch["input_ids"], labels):
            begin = (ids == self.start).nonzero()[-1].item() + self.heading
            end = (ids == self.end).nonzero()[-1].item() + 1
            wanted[begin:end] = ids[begin:end]
        return {**batch, "labels": labels}


class Sayings(MemoryMonitorCallback):
    """The callback, with what it says at each reading kept for the test."""

    def on_train_begin(self, *arguments, **given):
        super().on_train_begin(*arguments, **given)
        self.said = []
        self.monitor.on_reading = lambda reading: self.said.append((reading.step, reading.assessment.verdict, reading.assessment.brief()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--collator", choices=["usual", "garden"], required=True)
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--max-pixels", type=int, default=112 * 112)
    options = parser.parse_args()

    set_seed(3407)
    processor = AutoProcessor.from_pretrained(options.model)
    processor.image_processor.size["longest_edge"] = options.max_pixels
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(options.model)
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    arguments = TrainingArguments(
        output_dir=options.output,
        max_steps=options.steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        learning_rate=2e-4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        remove_unused_columns=False,
        use_cpu=True,
        seed=3407,
        dataloader_pin_memory=False,
        disable_tqdm=True,
    )
    memory = Sayings()
    collator = VisionCollator(processor) if options.collator == "garden" else UsualCollator(processor)
    trainer = Trainer(model=model, args=arguments, train_dataset=ListDataset(options.rows), data_collator=collator, callbacks=[memory])
    trainer.train()
    found = memory.assessment
    print(
        json.dumps(
            {
                "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
                "verdict": found.verdict,
                "knee": found.plateau.step if found.plateau else None,
                "bytes_per_sample": found.growth_per_sample,
                "said": memory.said,
                "explanation": None if memory.explanation is None else str(memory.explanation),
            }
        )
    )


if __name__ == "__main__":
    main()
