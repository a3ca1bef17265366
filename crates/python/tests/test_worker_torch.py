"""The worker's part that needs PyTorch but no model: what it says of a step, and of a disk that is full."""

import errno
import os
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from model_garden.worker.session import SteppedTrainer  # noqa: E402


def stepped(norm, *, skipped, scale):
    """A trainer after a step in fp16, with what accelerate knows of it; the notes it makes."""
    trainer, notes = SteppedTrainer.__new__(SteppedTrainer), []
    trainer.session = SimpleNamespace(channel=SimpleNamespace(note=notes.append))
    scaler = None if scale is None else SimpleNamespace(get_scale=lambda: scale)
    trainer.accelerator = SimpleNamespace(scaler=scaler, optimizer_step_was_skipped=skipped)
    trainer.step_loss, trainer.gradient_norm = torch.tensor(2.0), torch.tensor(norm)
    return trainer.step_facts()["gradient_norm"], notes


def test_a_step_that_overflowed_fp16_is_no_divergence_until_nothing_scales_it_down():
    norm, notes = stepped(float("inf"), skipped=True, scale=32768.0)
    assert norm == 0 and "overflowed fp16" in notes[0]
    assert stepped(float("nan"), skipped=True, scale=0.5) == (None, [])
    assert stepped(float("inf"), skipped=False, scale=None) == (None, [])
    assert stepped(1.5, skipped=False, scale=65536.0) == (1.5, [])


@pytest.mark.parametrize(("left", "kind"), [(0, errno.ENOSPC), (1 << 30, None)])
def test_a_full_disk_is_told_whatever_a_library_calls_it(monkeypatch, tmp_path, left, kind):
    def save(*_, **__):
        raise RuntimeError("unexpected pos 64 vs 0")

    trainer = SteppedTrainer.__new__(SteppedTrainer)
    trainer.save_model = save
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=left, f_frsize=1))
    with pytest.raises(OSError if kind else RuntimeError) as raised:
        trainer.write(str(tmp_path))
    assert getattr(raised.value, "errno", None) == kind
