"""The callback in real trainers: it stops before a limit, cleans up where asked, and knows the run; `datasets` and TRL work with the collator."""

import io
import json
import re

import pytest
import torch
from datasets import Dataset, Image
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration, Trainer, TrainingArguments

from model_garden import VisionCollator, VisionDataset, analyze
from model_garden.hf import MemoryCleanupCallback, MemoryMonitorCallback, create_memory_logging_callback, resident_bytes


@pytest.fixture(scope="module")
def made(garden, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainers")
    garden("init", "--preset", "tiny", "--output", folder / "model")
    garden("dataset", "create", "--kind", "photos", "--rows", 40, "--size", "160x120", "--output", folder / "photos")
    return folder


class Texts(torch.utils.data.Dataset):
    """Short texts; with `keeps`, each access leaves so many bytes behind."""

    def __init__(self, rows=64, keeps=0):
        self.ids = torch.randint(5, 4000, (rows, 12))
        self.keeps, self.kept = keeps, []

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, row):
        if self.keeps:
            self.kept.append(bytearray(b"\x01" * self.keeps))
        return {"input_ids": self.ids[row], "labels": self.ids[row]}


def train(made, output, dataset, *callbacks, collator=None, **arguments):
    torch.set_num_threads(1)
    settings = {"per_device_train_batch_size": 2, "max_steps": 30, "save_strategy": "no", **arguments}
    arguments = TrainingArguments(
        output_dir=output, report_to="none", use_cpu=True, remove_unused_columns=False, disable_tqdm=True, dataloader_pin_memory=False, **settings
    )
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(made / "model")
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset, data_collator=collator, callbacks=list(callbacks))
    trainer.train()
    return trainer


def test_the_trainer_saves_and_stops_before_the_limit(made, tmp_path, capsys):
    limit = resident_bytes() + 600_000_000
    callback = MemoryMonitorCallback(every=2, stop_before=limit, explain=False)
    trainer = train(made, tmp_path, Texts(keeps=4_000_000), callback, max_steps=400)
    stopped = trainer.state.global_step
    assert 0 < stopped < 400
    assert (tmp_path / f"checkpoint-{stopped}").is_dir(), "what was learned is on disk"
    owned = [sample["anon"] + sample["shmem"] + sample["swap"] for sample in samples(tmp_path / "memory.jsonl")]
    assert max(owned) < limit
    assert "stopped: " in capsys.readouterr().out


def samples(trace):
    with open(trace) as lines:
        return [sample for sample in map(json.loads, lines) if "rss" in sample]


def test_the_run_is_known_from_the_trainer(made, tmp_path, capsys):
    callback = create_memory_logging_callback(5, explain=False)
    train(made, tmp_path, Texts(rows=60), callback, gradient_accumulation_steps=3)
    facts = callback.assessment.to_dict()["facts"]
    assert (facts["dataset_size"], facts["samples_per_step"], facts["steps_per_epoch"]) == (60, 6, 10)
    steps = [sample["step"] for sample in samples(tmp_path / "memory.jsonl")]
    assert steps[0] is None and steps[1:7] == [5, 10, 15, 20, 25, 30]
    said = capsys.readouterr().out
    assert re.search(r"^Step 5: \d+ tensors \(CPU: \d+, GPU: 0\), Process RAM: \d+ MB \| ", said, re.MULTILINE), said
    assert "Largest tensors" in said and "4096 x 128" in said
    assert "<svg" in (tmp_path / "memory.html").read_text()
    assert analyze(tmp_path / "memory.jsonl").verdict == callback.assessment.verdict


def test_a_quiet_callback_without_files_leaves_nothing(made, tmp_path, capsys):
    callback = MemoryMonitorCallback(quiet=True, trace=None, report=None, largest=0)
    train(made, tmp_path, Texts(), callback, max_steps=12)
    assert "Memory" not in capsys.readouterr().out
    assert not list(tmp_path.glob("memory*"))
    assert callback.assessment is not None and callback.monitor is None


def test_a_stream_has_no_epochs_and_is_watched_all_the_same(made, tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            texts = Texts()
            while True:
                yield from texts

    callback = MemoryMonitorCallback(every=2, quiet=True)
    train(made, tmp_path, Stream(), callback, max_steps=24)
    assert callback.assessment.to_dict()["facts"]["dataset_size"] is None
    assert callback.assessment.samples >= 12


def test_cleaning_up_says_what_it_gave(made, tmp_path, capsys):
    callback = MemoryCleanupCallback(every=4)
    train(made, tmp_path, Texts(), callback, max_steps=12)
    assert len(callback.freed) == 3
    assert "3 clean-ups gave back" in capsys.readouterr().out
    with pytest.raises(ValueError, match="every=0"):
        MemoryCleanupCallback(every=0)


@pytest.fixture
def with_an_image_column(made):
    """The photos as a dataset of `datasets`, whose images are decoded when a row is read."""
    rows = {"images": [], "messages": []}
    for row in VisionDataset(made / "photos"):
        question, answer = row["messages"]
        image, text = question["content"]
        rows["images"].append([{"bytes": image["image"], "path": None}])
        shown = [{"type": "image", "text": None}, {"type": "text", "text": text["text"]}]
        said = [{"type": "text", "text": answer["content"][0]["text"]}]
        rows["messages"].append([{"role": "user", "content": shown}, {"role": "assistant", "content": said}])
    return Dataset.from_dict(rows).cast_column("images", [Image()])


def test_an_image_column_of_datasets_gives_what_hf_gives(made, with_an_image_column):
    processor = AutoProcessor.from_pretrained(made / "model")
    batch = VisionCollator(processor)([with_an_image_column[0], with_an_image_column[1]])
    rows = [with_an_image_column[0], with_an_image_column[1]]
    plain = [[{key: value for key, value in part.items() if value is not None} for part in turn["content"]] for row in rows for turn in row["messages"]]
    turns = [{"role": turn["role"], "content": content} for turn, content in zip([turn for row in rows for turn in row["messages"]], plain)]
    texts = [processor.apply_chat_template(turns[:2]), processor.apply_chat_template(turns[2:])]
    theirs = processor(text=texts, images=[image for row in rows for image in row["images"]], padding=True, return_tensors="pt")
    for name, values in theirs.items():
        assert torch.equal(batch[name], values), name
    assert set(batch) == {*theirs, "labels"}


def test_sft_trainer_learns_with_collator_and_callback(made, with_an_image_column, tmp_path):
    from trl import SFTConfig, SFTTrainer

    torch.set_num_threads(1)
    callback = MemoryMonitorCallback(every=2, quiet=True)
    arguments = SFTConfig(
        output_dir=tmp_path, max_steps=24, per_device_train_batch_size=2, learning_rate=2e-3, logging_steps=1, report_to="none", use_cpu=True,
        bf16=False, remove_unused_columns=False, dataset_kwargs={"skip_prepare_dataset": True}, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    trainer = SFTTrainer(
        model=Qwen2_5_VLForConditionalGeneration.from_pretrained(made / "model"),
        args=arguments,
        train_dataset=with_an_image_column,
        data_collator=VisionCollator(AutoProcessor.from_pretrained(made / "model")),
        callbacks=[callback],
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 24 and losses[-1] < losses[0] - 1, losses
    assert callback.assessment.verdict != "leak"
    assert callback.assessment.to_dict()["facts"]["dataset_size"] == 40


def test_lightning_reads_steps_and_stops_before_the_limit(tmp_path):
    import lightning

    from model_garden.lightning import MemoryMonitorCallback as LightningCallback

    class Keeps(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.kept = torch.nn.Linear(8, 1), []

        def training_step(self, batch, _):
            self.kept.append(bytearray(b"\x01" * 4_000_000))
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 8)), batch_size=4)
    callback = LightningCallback(every=2, stop_before=resident_bytes() + 500_000_000, quiet=True, explain=False)
    trainer = lightning.Trainer(
        max_epochs=50, accelerator="cpu", devices=1, callbacks=[callback], logger=False, default_root_dir=tmp_path,
        enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(Keeps(), loader)
    assert 0 < trainer.global_step < 400
    assert (tmp_path / "memory-limit.ckpt").exists()
    facts = callback.assessment.to_dict()["facts"]
    assert (facts["dataset_size"], facts["samples_per_step"], facts["steps_per_epoch"]) == (64, 8, 8)


def test_the_images_of_a_dataset_stay_as_they_are(made):
    """The founding bug, in one batch: the usual collator decodes the list's own images, ours does not."""
    from PIL import Image as Pillow

    encoded = VisionDataset(made / "photos")[0]["messages"][0]["content"][0]["image"]
    image = Pillow.open(io.BytesIO(encoded))
    part = [{"type": "image", "image": image}, {"type": "text", "text": "What is it?"}]
    row = {"messages": [{"role": "user", "content": part}, {"role": "assistant", "content": [{"type": "text", "text": "A photo."}]}]}
    VisionCollator(made / "model")([row])
    assert image._im is None if hasattr(image, "_im") else image.im is None
