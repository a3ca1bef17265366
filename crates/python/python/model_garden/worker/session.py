"""A worker at work: Hugging Face's Trainer takes the steps that `model-garden` asks for.

The Trainer is given one item a step, which holds all batches of that step. Between two steps it waits for the next request, and does what
is asked meanwhile: evaluate, save, look for values that are not finite. It never logs, evaluates or saves by itself, and what it prints
goes to a log.
"""

from __future__ import annotations

import errno
import os
from dataclasses import fields
from typing import Any, Iterator

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from .channel import Channel, finite
from .settings import Settings
from .transformers_engine import recomputes

# Names of optimizers and schedules here, by those of the flags.
OPTIMIZERS = {"adamw": "adamw_torch", "adamw_8bit": "adamw_bnb_8bit"}
# In fp16 the loss is scaled up, by less after each overflow. Where even the plain loss overflows, training diverged.
LEAST_LOSS_SCALE = 1.0
# A disk with less than this is full: a write that failed fills it to the last blocks.
LEAST_SPACE = 1 << 20


class Session:
    """A model, its trainer, and the requests that drive it."""

    def __init__(self, model: nn.Module, settings: Settings, channel: Channel):
        self.channel = channel
        self.trainer = SteppedTrainer(model, settings, self)
        self.settings = settings
        # The request for the step that comes next.
        self.next_step: dict[str, Any] | None = None

    def run(self) -> None:
        """Answers requests until the other end is closed."""
        parameters = list(self.trainer.model.parameters())
        self.channel.answer(
            parameters=sum(map(elements, parameters)),
            trained_parameters=sum(elements(parameter) for parameter in parameters if parameter.requires_grad),
        )
        request = self.channel.request()
        assert request["do"] == "begin", request["do"]
        # From here on the trainer asks for steps; it returns when the last one is over.
        self.trainer.train(resume_from_checkpoint=request["checkpoint"])

    def wait_for_step(self) -> None:
        """Does what is asked until a step is asked for."""
        while True:
            request = self.channel.request()
            if request["do"] == "step":
                self.next_step = request
                return
            self.channel.answer(**self.do(request))

    def do(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "evaluate":
                return self.trainer.sums(request["batches"][0])
            case "check":
                return {"tensor": first_not_finite(self.trainer.model, self.trainer.optimizer)}
            case "save":
                self.trainer.write(request["folder"])
                return {}
            case other:
                raise ValueError(f"unknown request '{other}'")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The steps, as the trainer's loader would give batches."""
        while self.next_step is not None:
            step, self.next_step = self.next_step, None
            yield step


class Requests(TrainerCallback):
    """Answers after each step, and waits for the next request."""

    def __init__(self, session: Session):
        self.session = session

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        self.session.channel.answer()
        self.session.wait_for_step()

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        self.session.channel.answer(**self.session.trainer.step_facts())
        self.session.wait_for_step()


class SteppedTrainer(Trainer):
    """A Trainer whose items are whole steps."""

    def __init__(self, model: nn.Module, settings: Settings, session: Session):
        arguments = training_arguments(settings)
        super().__init__(model=model, args=arguments, callbacks=[Requests(session)])
        self.session = session
        self.adam = settings.adam
        self.step_loss = torch.zeros(())
        self.gradient_norm: torch.Tensor | float | None = None
        self.remember_gradient_norm()

    def get_train_dataloader(self) -> Any:
        return self.session

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Matrices decay, norms and biases do not. By their names, the Trainer would take the vision tower's norms for matrices."""
        return [name for name, parameter in model.named_parameters() if parameter.dim() > 1]

    def floating_point_ops(self, inputs: Any) -> int:
        return 0

    def remember_gradient_norm(self) -> None:
        """Keeps the norm before clipping, which the Trainer only logs."""
        clip = self.accelerator.clip_grad_norm_

        def clip_and_remember(*arguments: Any, **named: Any) -> Any:
            self.gradient_norm = clip(*arguments, **named)
            return self.gradient_norm

        self.accelerator.clip_grad_norm_ = clip_and_remember

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Gradients of the mean loss of the step's label tokens; gives that mean."""
        model.train()
        self.follow(inputs["rate"])
        label_tokens = max(inputs["label_tokens"], 1)
        total = torch.zeros((), device=self.args.device)
        for batch in inputs["batches"]:
            # Dropout depends on nothing but the seed and the place in the run: a resumed run repeats it.
            torch.manual_seed(batch["noise"] % 2**63)
            tensors = self.tensors(batch)
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, tensors, num_items_in_batch=label_tokens)
            if not self.model_accepts_loss_kwargs:
                # The mean over the batch is not that over the step.
                loss = loss * (batch["label_tokens"] / label_tokens)
            self.accelerator.backward(loss)
            total += loss.detach().float()
        self.step_loss = total
        return total

    def follow(self, rate: float) -> None:
        """Sets what may differ from a checkpoint's settings: `model-garden` says the learning rate of each step."""
        for number, group in enumerate(self.optimizer.param_groups):
            group["lr"] = rate
            group["betas"] = (self.adam["beta1"], self.adam["beta2"])
            group["eps"] = self.adam["epsilon"]
            # The Trainer's second group is that of the names which do not decay.
            group["weight_decay"] = self.adam["weight_decay"] if number == 0 else 0.0

    def tensors(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        tensors = {name: torch.from_numpy(array) for name, array in batch["arrays"].items()}
        return self._prepare_inputs(tensors)

    def step_facts(self) -> dict[str, Any]:
        norm = finite(float(self.gradient_norm or 0.0))
        if norm is None and self.scales_down():
            self.session.channel.note("the gradients overflowed fp16: this step moved nothing, and the next ones are scaled down")
            norm = 0.0
        facts = {"loss": finite(float(self.step_loss)), "gradient_norm": norm}
        if torch.cuda.is_available():
            # `live` at the fullest moment of this step.
            facts["memory"] = {"live": torch.cuda.max_memory_allocated(), "peak": torch.cuda.max_memory_reserved(), "buffers": 0}
            torch.cuda.reset_peak_memory_stats()
        return facts

    def scales_down(self) -> bool:
        """Whether the step was left out because its gradients were scaled too high for fp16, as the first ones of a run often are."""
        scaler = self.accelerator.scaler
        return scaler is not None and self.accelerator.optimizer_step_was_skipped and scaler.get_scale() >= LEAST_LOSS_SCALE

    @torch.no_grad()
    def sums(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The summed loss of a batch's label tokens, and how many of them the model would have chosen."""
        model = self.model
        model.eval()
        tensors = self.tensors(batch)
        labels = tensors.pop("labels")[:, 1:]
        with self.compute_loss_context_manager():
            logits = model(**tensors).logits
        learned = labels != -100
        logits, labels = logits[:, :-1][learned].float(), labels[learned]
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
        model.train()
        return {"loss": finite(float(loss)), "correct": int((logits.argmax(-1) == labels).sum())}

    def write(self, folder: str) -> None:
        """What a checkpoint of the Trainer holds, without its state, which `model-garden` keeps."""
        try:
            self.save_model(folder, _internal_call=True)
            self._save_optimizer_and_scheduler(folder)
            self._save_scaler(folder)
            self._save_rng_state(folder)
        except Exception as error:
            # PyTorch and safetensors each have their own words for a full disk.
            place = os.statvfs(folder)
            if place.f_bavail * place.f_frsize < LEAST_SPACE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder) from error
            raise


def training_arguments(settings: Settings) -> TrainingArguments:
    """The Trainer's settings. Names that this version does not know are left out."""
    cuda = torch.cuda.is_available()
    bf16 = cuda and torch.cuda.is_bf16_supported()
    wanted = {
        "output_dir": str(settings.folder / "trainer"),
        "per_device_train_batch_size": settings.batch_size,
        "gradient_accumulation_steps": 1,
        "max_steps": settings.max_steps,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": settings.schedule,
        "warmup_steps": settings.warmup_steps,
        "optim": OPTIMIZERS[settings.optimizer],
        "weight_decay": settings.adam["weight_decay"],
        "adam_beta1": settings.adam["beta1"],
        "adam_beta2": settings.adam["beta2"],
        "adam_epsilon": settings.adam["epsilon"],
        "max_grad_norm": settings.max_grad_norm,
        # Older versions of NumPy take seeds of 32 bits.
        "seed": settings.seed % 2**32,
        "use_cpu": not cuda,
        "bf16": bf16,
        "fp16": cuda and not bf16,
        "gradient_checkpointing": settings.engine != "unsloth" and recomputes(settings),
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "save_strategy": "no",
        "eval_strategy": "no",
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "ignore_data_skip": True,
        "logging_nan_inf_filter": False,
        "average_tokens_across_devices": False,
        "dataloader_pin_memory": False,
    }
    known = {field.name for field in fields(TrainingArguments)}
    arguments = TrainingArguments(**{name: value for name, value in wanted.items() if name in known})
    # One worker, one GPU: copies of the model on several would need more memory and other sums.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def elements(parameter: torch.Tensor) -> int:
    """The values of a parameter; those of four bits are packed in pairs."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else state.shape.numel()


def first_not_finite(model: nn.Module, optimizer: Any) -> str | None:
    """The first trained tensor, or part of the optimizer's state, that holds values that are not finite."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if not torch.isfinite(parameter).all():
            return name
        for part, values in optimizer.state.get(parameter, {}).items():
            if torch.is_tensor(values) and values.is_floating_point() and not torch.isfinite(values).all():
                return f"the optimizer's {part} of {name}"
    return None
