"""The callback in Lightning: what an epoch and a step are where the trainer cuts epochs short or the module steps its optimizers itself."""

import json

import lightning
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from model_garden.hf import resident_bytes
from model_garden.lightning import MemoryMonitorCallback


class Line(lightning.LightningModule):
    def __init__(self, keeps=0):
        super().__init__()
        self.layer, self.keeps, self.kept = torch.nn.Linear(8, 1), keeps, []

    def training_step(self, batch, _):
        self.kept.append(bytearray(b"1") * self.keeps)
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class TwoOptimizers(Line):
    """As a GAN trains: each batch steps two optimizers."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self):
        return [super(TwoOptimizers, self).configure_optimizers() for _ in range(2)]

    def training_step(self, batch, index):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, index))
            optimizer.step()


def fit(folder, module, *, rows=160, shuffle=False, stop_before=None, **settings):
    """Trains with batches of four rows; gives the trainer and the callback."""
    callback = MemoryMonitorCallback(every=2, quiet=True, explain=False, stop_before=stop_before)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, callbacks=[callback], logger=False, default_root_dir=folder, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, **settings,
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(torch.ones(rows, 8)), batch_size=4, shuffle=shuffle))
    return trainer, callback


@pytest.mark.parametrize(("shuffle", "epoch"), [(False, (40, 10)), (True, (160, 40))])
def test_an_epoch_that_is_cut_short_has_the_rows_that_come_again(tmp_path, shuffle, epoch):
    _, callback = fit(tmp_path, Line(), shuffle=shuffle, limit_train_batches=10, max_epochs=2)
    facts = callback.assessment.to_dict()["facts"]
    assert (facts["dataset_size"], facts["steps_per_epoch"]) == epoch


def test_a_batch_that_steps_two_optimizers_is_one_step(tmp_path):
    trainer, _ = fit(tmp_path, TwoOptimizers(), max_epochs=2)
    steps = [json.loads(line).get("step") for line in (tmp_path / "memory.jsonl").read_text().splitlines()]
    assert trainer.global_step == 160 and steps[-1] == 80


def test_memory_does_not_wait_for_the_least_number_of_epochs(tmp_path):
    limit = resident_bytes() + 400_000_000
    trainer, callback = fit(tmp_path, Line(keeps=4_000_000), stop_before=limit, min_epochs=8, min_steps=300, max_epochs=10)
    assert 0 < trainer.global_step < 200 and callback.monitor is None
    assert (tmp_path / "memory-limit.ckpt").exists()
