"""RobustLoss and RobustAccuracy inside the real Lightning, transformers, accelerate, timm and torchmetrics."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import rattle
from rattle.stats import wilson

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.filterwarnings("default")]  # warnings are theirs


def stripes(n: int = 96) -> tuple[Tensor, Tensor]:
    """Images whose bright third says their class."""
    y = torch.arange(n) % 3
    x = 0.4 * torch.rand(n, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    for label in range(3):
        x[y == label, :, 4 * label : 4 * label + 4] += 0.5
    return x, y


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        rattle.Normalise((0.5,) * 3, (0.25,) * 3),
        nn.Conv2d(3, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 25, 3),
    )


def robust_share(model: nn.Module, epsilon: float = 0.05) -> float:
    return rattle.evaluate(model, *stripes(), "pgd5", epsilon=epsilon, check_model=False).robust_accuracy


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_lightning_module_trains_and_validates_by_a_metric(tmp_path: Path, precision: str) -> None:
    lightning = pytest.importorskip("lightning")

    class Robust(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()
            self.criterion = rattle.RobustLoss("trades-2nd", epsilon=0.05, steps=3)
            self.metric = rattle.RobustAccuracy("pgd5", epsilon=0.05)

        def training_step(self, batch: Any, _: int) -> Tensor:
            return self.criterion(self.model, *batch)

        def validation_step(self, batch: Any, _: int) -> None:
            self.metric.update(self.model, *batch)

        def on_validation_epoch_end(self) -> None:
            self.log_dict(self.metric.compute())
            self.metric.reset()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    module = Robust()
    before = robust_share(module.model)
    images = DataLoader(TensorDataset(*stripes()), batch_size=32)
    trainer = lightning.Trainer(
        max_epochs=6,
        accelerator="cpu",
        precision=precision,
        default_root_dir=tmp_path,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, images, images)
    assert robust_share(module.model) > max(0.9, before)
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert logged["n"] == 96
    assert logged["low"] < logged["robust"] <= logged["clean"]
    saved = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)["state_dict"]
    assert int(saved["criterion._extra_state"]) == module.criterion.calls == 18


def test_transformers_trainer_takes_the_loss(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=12,
        patch_size=4,
        num_labels=3,
        initializer_range=0.2,  # for so small a network
    )
    torch.manual_seed(0)
    criterion = rattle.RobustLoss("at", epsilon=0.02, steps=3)

    class Trainer(transformers.Trainer):
        def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            loss = criterion(model, inputs["pixel_values"], inputs["labels"])
            return (loss, model(inputs["pixel_values"])) if return_outputs else loss

    x, y = stripes()
    examples = [{"pixel_values": image, "labels": int(label)} for image, label in zip(x, y, strict=True)]
    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=30,
        per_device_train_batch_size=32,
        learning_rate=3e-3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    model = transformers.ViTForImageClassification(config)
    Trainer(model=model, args=settings, train_dataset=examples).train()
    assert criterion.calls == 90
    assert robust_share(model.eval(), epsilon=0.02) > 0.9


ACCELERATE = """
import os, sys, torch
sys.path.insert(0, {folder!r})
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
import rattle
from test_frameworks import network, robust_share, stripes
accelerator = Accelerator(cpu=True)
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(TensorDataset(*stripes()), batch_size=16)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
criterion = rattle.RobustLoss("trades-awp-1st", epsilon=0.05, steps=3)
for epoch in range(8):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        with criterion.awp(model, x, y) as loss:
            accelerator.backward(loss)
        optimizer.step()
metric = rattle.RobustAccuracy("pgd5", epsilon=0.05)
for x, y in loader:
    metric.update(accelerator.unwrap_model(model), x, y)
found = metric.compute()
weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
everyone = accelerator.gather(weights[None])
assert torch.equal(everyone[0], everyone[-1]), "ranks have the same weights"
if accelerator.is_main_process:
    print("RANKS", accelerator.num_processes, "N", int(found["n"]), "ROBUST", float(found["robust"]), flush=True)
os._exit(0)  # a process that ends with DDP and gloo aborts now and then, also without this library
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_with_awp_on_one_rank_and_two(tmp_path: Path, ranks: int) -> None:
    pytest.importorskip("accelerate")
    script = tmp_path / "train.py"
    script.write_text(ACCELERATE.format(folder=str(Path(__file__).parent)))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    words = next(line for line in done.stdout.splitlines() if line.startswith("RANKS")).split()
    assert words[1] == str(ranks)
    assert int(words[3]) == 96
    assert float(words[5]) > 0.9


def test_timm_network_optimizer_and_schedule_in_its_own_kind_of_loop() -> None:
    """The loop of timm's train.py, with the criterion in the place of its loss."""
    timm = pytest.importorskip("timm")
    from timm.data.mixup import Mixup
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler

    torch.manual_seed(0)
    net = timm.create_model("resnet10t", num_classes=3, in_chans=3)
    optimizer = create_optimizer_v2(net, opt="adamw", lr=2e-3, weight_decay=0.01)
    schedule = CosineLRScheduler(optimizer, t_initial=10, warmup_t=1, warmup_lr_init=1e-4)
    mixup = Mixup(mixup_alpha=0.1, num_classes=3, label_smoothing=0.0)
    criterion = rattle.RobustLoss("trades", epsilon=0.05, steps=2)
    (x, y), net = stripes(), net.train()
    for epoch in range(10):
        for part, labels in zip(x.split(32), y.split(32), strict=True):
            mixed, soft = mixup(part.clone(), labels)
            optimizer.zero_grad()
            criterion(net, mixed, soft).backward()
            optimizer.step()
        schedule.step(epoch + 1)
    assert robust_share(net.eval()) > 0.8


def test_the_metric_is_one_of_torchmetrics() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    metric = rattle.RobustAccuracy("pgd5", epsilon=0.05)
    assert isinstance(metric, torchmetrics.Metric)
    model, (x, y) = network().eval(), stripes()
    together = torchmetrics.MetricCollection({"robust": metric})
    together.update(model, x[:40], y[:40])
    together.update(model, x[40:], y[40:])
    found = together.compute()
    share = robust_share(model)
    assert float(found["robust"]) == pytest.approx(share)
    assert float(found["low"]) == pytest.approx(wilson(round(96 * share), 96).low)
    batch = metric(model, x[:8], y[:8])  # the value of a batch, added to the state
    assert float(batch["n"]) == 8
