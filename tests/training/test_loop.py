"""The training loop: killed and resumed without a trace, one line per step of the log, clear failures."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from sageplan.errors import ConfigError, FormatError, MissingExtraError, TrainingError
from sageplan.training import checkpoint as checkpoint_module
from sageplan.training import loop
from sageplan.training.checkpoint import Checkpoint, atomic, read_json, read_tensors, write_json, write_tensors
from sageplan.training.config import Optimiser
from sageplan.training.loop import Average, train
from sageplan.training.metrics import JsonLines, open_sinks, read_metrics
from sageplan.training.progress import Bars

LOG = "metrics.jsonl"
KILLED_STEPS = 1_000
OPTIMISER = Optimiser(steps=KILLED_STEPS, batch=8, rate=1e-2, warmup=50)
SHORT = Optimiser(steps=5, batch=4, rate=0.1, warmup=0, weight_decay=0.0)


class Numbers(NamedTuple):
    x: Tensor


class Learner(nn.Module):
    """Regression with noise of its own, a moving average, and a pause to be killed in."""

    name = "toy"

    def __init__(self, pause=0.0, at=None):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(3, 2)
        self.mean = nn.Linear(3, 2).requires_grad_(False)
        self.pause, self.at = pause, at or {}
        self.evaluations = []

    @property
    def average(self):
        return Average(self.net, self.mean, lambda progress: 0.9 + 0.09 * progress)

    def sample(self, batch, generator):
        time.sleep(self.pause)
        return Numbers(torch.randn(batch, 3, generator=generator))

    def loss(self, batch, step, generator):
        if step in self.at:
            self.at[step]()
        noise = torch.randn(len(batch.x), 2, generator=generator)
        error = (self.net(batch.x) - batch.x[:, :2] + 0.1 * noise).square().mean()
        return error, {"error": error}

    def evaluate(self, generator):
        assert not self.training
        self.evaluations.append(float(torch.rand((), generator=generator)))
        return {"held_out": float(self.net.weight.detach().sum())}

    def check(self, metrics):
        pass


def run(learner, folder, optimiser=OPTIMISER, **options):
    return train(
        learner, optimiser, folder,
        **{"device": torch.device("cpu"), "seed": 3, "identity": "toy", "bars": Bars(False), **options},
    )  # fmt: skip


def weights(learner):
    return torch.cat([p.flatten() for p in learner.state_dict().values()])


class Stopped(BaseException):
    """As the user's Ctrl-C, but pytest does not take it for its own."""


def stop():
    raise Stopped


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Final weights and the log of a run that nothing happened to."""
    learner, folder = Learner(), tmp_path_factory.mktemp("run") / "toy"
    summary = run(learner, folder)
    assert summary["first_step"] == 0
    return weights(learner), (folder / LOG).read_text()


# ---- killed and resumed ----------------------------------------------------------------------------


def test_a_killed_run_resumes_to_the_same_weights_bit_for_bit(tmp_path, uninterrupted):
    folder = tmp_path / "toy"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen([sys.executable, __file__, str(folder)], env=environment)
    try:
        deadline = time.monotonic() + 120
        while len(read_metrics(folder / LOG)) < 3 or not (folder / "checkpoint.safetensors").exists():
            assert child.poll() is None, "the child ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert child.returncode == -signal.SIGKILL
    assert 300 <= read_metrics(folder / LOG)[-1]["step"] < KILLED_STEPS

    learner = Learner()
    summary = run(learner, folder)
    assert 200 <= summary["first_step"] < KILLED_STEPS
    assert torch.equal(weights(learner), uninterrupted[0])
    assert (folder / LOG).read_text() == uninterrupted[1]


@pytest.mark.parametrize(("saved_until", "stopped_at"), [(200, 550), (0, 350), (900, 950), (300, 300), (0, 20)])
def test_an_interrupted_run_resumes_from_its_checkpoint(tmp_path, monkeypatch, uninterrupted, saved_until, stopped_at):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0 if saved_until else math.inf)
    at = {saved_until: lambda: monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", math.inf), stopped_at: stop}
    with pytest.raises(Stopped):
        run(Learner(at=at), tmp_path)
    assert [line["step"] for line in read_metrics(tmp_path / LOG)] == list(range(100, stopped_at + 1, 100))

    torch.rand(17)  # the global stream plays no part
    learner = Learner()
    assert run(learner, tmp_path)["first_step"] == saved_until
    assert torch.equal(weights(learner), uninterrupted[0])
    assert (tmp_path / LOG).read_text() == uninterrupted[1]


def test_a_run_interrupted_twice_resumes(tmp_path, monkeypatch, uninterrupted):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    for step in (250, 250, 610):
        with pytest.raises(Stopped):
            run(Learner(at={step: stop}), tmp_path)
    learner = Learner()
    assert run(learner, tmp_path)["first_step"] == 600
    assert torch.equal(weights(learner), uninterrupted[0])
    assert (tmp_path / LOG).read_text() == uninterrupted[1]


def test_noise_is_drawn_from_a_stream_of_its_own(tmp_path):
    """Anew each step, otherwise for another seed, the same for the same."""

    def noise(folder, **options):
        learner, drawn = Learner(), []
        loss = learner.loss
        learner.loss = lambda batch, step, generator: (
            drawn.append(torch.rand((), generator=generator).item()) or loss(batch, step, generator)
        )
        run(learner, tmp_path / folder, **{"optimiser": SHORT, **options})
        return drawn

    drawn = noise("a")
    assert len(set(drawn)) == 5
    assert noise("b") == drawn
    assert noise("c", seed=4) != drawn
    assert noise("d", optimiser=Optimiser(steps=5, batch=4, rate=0.5)) == drawn


def test_a_finished_run_is_only_read(tmp_path, uninterrupted):
    first = run(Learner(), tmp_path)
    learner = Learner(at=dict.fromkeys(range(KILLED_STEPS), stop))
    second = run(learner, tmp_path)
    assert second == first
    assert second["steps"] == KILLED_STEPS
    assert torch.equal(weights(learner), uninterrupted[0])
    assert (tmp_path / LOG).read_text() == uninterrupted[1]
    assert not learner.training


def test_another_seed_trains_otherwise(tmp_path, uninterrupted):
    learner = Learner()
    run(learner, tmp_path, seed=4)
    assert not torch.equal(weights(learner), uninterrupted[0])


# ---- checkpoints -----------------------------------------------------------------------------------


def test_a_checkpoint_of_another_identity_is_refused(tmp_path):
    run(Learner(), tmp_path, SHORT)
    with pytest.raises(ConfigError, match=r"checkpoint\.safetensors was made with other settings or other data"):
        run(Learner(), tmp_path, SHORT, identity="other")


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_a_corrupt_checkpoint_is_refused(tmp_path, damage):
    run(Learner(), tmp_path, SHORT)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes({"cut": path.read_bytes()[:-40], "empty": b"", "text": b"weights " * 100}[damage])
    with pytest.raises(FormatError, match=r"checkpoint\.safetensors is corrupt or not a safetensors file"):
        run(Learner(), tmp_path, SHORT)


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    run(Learner(), tmp_path, SHORT)
    learner = Learner()
    learner.net, learner.mean = nn.Linear(3, 4), nn.Linear(3, 4).requires_grad_(False)
    with pytest.raises(FormatError, match=r"does not fit: .*weight has shape \(2, 3\), expected \(4, 3\)"):
        run(learner, tmp_path, SHORT)


def test_a_checkpoint_holds_moments_and_generators(tmp_path):
    run(Learner(), tmp_path, SHORT)
    tensors, header = read_tensors(tmp_path / "checkpoint.safetensors", "")
    assert float(header.pop("seconds")) > 0
    assert header == {"step": "5", "identity": "toy"}
    assert {name.split("/")[0] for name in tensors} == {"model", "optimiser", "generator"}
    assert {"optimiser/0/exp_avg", "optimiser/1/exp_avg_sq", "generator/data", "generator/noise"} <= tensors.keys()


def test_a_checkpoint_of_nothing_starts_at_the_beginning(tmp_path):
    learner = Learner()
    update = torch.optim.AdamW(learner.net.parameters())
    assert Checkpoint(tmp_path / "none", "").restore(learner, update, {}) == 0


def test_checkpoints_are_spaced_in_time(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(Checkpoint, "save", lambda self, step, *_: saved.append(step))
    run(Learner(), tmp_path, Optimiser(steps=350, batch=2, warmup=0))
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    run(Learner(), tmp_path, Optimiser(steps=350, batch=2, warmup=0))
    assert saved == [350, 100, 200, 300, 350]


# ---- the log ---------------------------------------------------------------------------------------


def test_a_half_written_line_is_dropped(tmp_path, monkeypatch, uninterrupted):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    with pytest.raises(Stopped):
        run(Learner(at={430: stop}), tmp_path)
    with (tmp_path / LOG).open("a") as file:
        file.write('{"step": 500, "lo')
    assert [line["step"] for line in read_metrics(tmp_path / LOG)] == [100, 200, 300, 400]
    run(Learner(), tmp_path)
    assert (tmp_path / LOG).read_text() == uninterrupted[1]


def test_lines_can_be_read_while_they_are_written(tmp_path):
    path = tmp_path / LOG
    assert read_metrics(path) == []
    log = JsonLines(path, 0)
    for step in (100, 200):
        log.write(step, {"loss": step / 1000})
        assert read_metrics(path)[-1] == {"step": step, "loss": step / 1000}
    log.close()
    JsonLines(path, 100).close()
    assert read_metrics(path) == [{"step": 100, "loss": 0.1}]


def test_the_log_has_means_rates_and_evaluations(tmp_path):
    learner = Learner()
    optimiser = Optimiser(steps=450, batch=2, rate=0.1, warmup=100)
    summary = run(learner, tmp_path, optimiser, evaluations=2)
    lines = read_metrics(tmp_path / LOG)
    assert [line["step"] for line in lines] == [100, 200, 300, 400, 450]
    assert all(line["loss"] == line["error"] for line in lines)
    assert [line["rate"] for line in lines] == [optimiser.rate_at(line["step"] - 1) for line in lines]
    assert [line["step"] for line in lines if "held_out" in line] == [200, 400, 450]
    assert len(learner.evaluations) == 3
    assert len(set(learner.evaluations)) == 1  # the same held-out sample each time
    assert {"steps": 450, "first_step": 0, "held_out": lines[-1]["held_out"]}.items() <= summary.items()


# ---- one step --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "rate"),
    [(0, 0.25), (1, 0.5), (3, 1.0), (4, 1.0), (6, 0.1 + 0.45 * (1 + math.sqrt(0.5))), (8, 0.55), (12, 0.1), (99, 0.1)],
)
def test_the_rate_warms_up_and_decays_along_a_cosine(step, rate):
    assert Optimiser(steps=12, warmup=4, rate=1.0, final_rate=0.1).rate_at(step) == pytest.approx(rate)


def test_the_rate_without_a_warm_up_starts_at_its_highest():
    assert Optimiser(steps=10, warmup=0, rate=1.0, final_rate=0.0).rate_at(0) == 1.0
    paper = Optimiser()
    assert paper.rate_at(0) == pytest.approx(1e-4 / 5_000)
    assert paper.rate_at(5_000) == pytest.approx(1e-4)
    assert paper.rate_at(199_999) == pytest.approx(1e-6, rel=1e-3)


def test_the_first_update_is_as_large_as_the_rate_at_its_step(tmp_path):
    learner = Learner()
    before = weights(learner.net)
    run(learner, tmp_path, Optimiser(steps=1, batch=4, rate=0.1, warmup=10, weight_decay=0.0))
    assert (weights(learner.net) - before).abs() == pytest.approx(0.01, rel=1e-3)  # Adam's first step is ±rate


def test_gradients_are_clipped_to_their_norm(tmp_path):
    def norm(folder, clip):
        learner = Learner()
        run(learner, tmp_path / folder, Optimiser(steps=1, batch=4, warmup=0, clip=clip))
        return torch.cat([p.grad.flatten() for p in learner.net.parameters()]).norm().item()

    free = norm("free", None)
    assert norm("wide", 10 * free) == pytest.approx(free)
    assert norm("narrow", free / 3) == pytest.approx(free / 3, rel=1e-4)
    assert "gradient_norm" not in read_metrics(tmp_path / "free" / LOG)[0]
    assert read_metrics(tmp_path / "narrow" / LOG)[0]["gradient_norm"] == pytest.approx(free)


def test_the_average_follows_with_its_momentum(tmp_path):
    learner = Learner()
    before = weights(learner.mean)
    run(learner, tmp_path, Optimiser(steps=1, batch=4, rate=0.1, warmup=0))
    assert torch.allclose(weights(learner.mean), 0.99 * before + 0.01 * weights(learner.net), atol=1e-7)
    assert all(p.grad is None for p in learner.mean.parameters())


def test_half_precision_leaves_weights_and_checkpoints_in_single(tmp_path):
    learner, seen = Learner(), []
    learner.net.register_forward_hook(lambda *hook: seen.append(hook[2].dtype))
    run(learner, tmp_path, Optimiser(steps=2, batch=4, precision="bf16"))
    assert seen == [torch.bfloat16] * 2
    assert weights(learner).dtype == torch.float32
    tensors, _ = read_tensors(tmp_path / "checkpoint.safetensors", "")
    assert {t.dtype for name, t in tensors.items() if not name.startswith("generator")} == {torch.float32}


@pytest.mark.parametrize("compiled", [False, True])
def test_modules_are_compiled_when_asked(tmp_path, monkeypatch, compiled):
    seen = []
    monkeypatch.setattr(nn.Module, "compile", lambda self: seen.append(self))
    learner = Learner()
    run(learner, tmp_path, Optimiser(steps=1, batch=4, compile=compiled))
    assert seen == ([learner.net, learner.mean] if compiled else [])


# ---- failures --------------------------------------------------------------------------------------


def test_divergence_is_an_error_and_the_last_good_checkpoint_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    learner = Learner()
    learner.at = {250: lambda: learner.net.weight.data.fill_(math.nan)}
    with pytest.raises(TrainingError, match=r"toy diverged by step 300: .*loss.* not finite.*Lower the learning rate"):
        run(learner, tmp_path)
    tensors, header = read_tensors(tmp_path / "checkpoint.safetensors", "")
    assert header["step"] == "200"
    assert tensors["model/net.weight"].isfinite().all()
    assert [line["step"] for line in read_metrics(tmp_path / LOG)] == [100, 200]


def test_a_failed_check_stops_the_training(tmp_path, monkeypatch):
    def fail(metrics):
        raise TrainingError(f"pointless at {metrics['held_out']:.0f}")

    learner = Learner()
    monkeypatch.setattr(learner, "check", fail)
    with pytest.raises(TrainingError, match="pointless"):
        run(learner, tmp_path, SHORT)


def test_an_output_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=f"cannot write to the output folder {folder}"):
            run(Learner(), folder, SHORT)


def test_a_full_disk_is_said_before_training(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=3 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    learner = Learner(at={0: stop})
    with pytest.raises(TrainingError, match=r"has 3 MiB free, \d+ MiB are needed for checkpoints"):
        run(learner, tmp_path, SHORT)


# ---- atomic files ----------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file.json"
    write_json(path, {"old": 1})

    def fail():
        with atomic(path) as partial:
            partial.write_text("half")
            raise RuntimeError("pulled the plug")

    with pytest.raises(RuntimeError, match="pulled the plug"):
        fail()
    assert read_json(path, "") == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_serialised_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.json"
    write_json(path, {"old": 1})
    with pytest.raises(TypeError):
        write_json(path, {"new": object()})
    assert read_json(path, "") == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_replaces_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "weights.safetensors"
    write_tensors(path, {"a": torch.zeros(3)})
    old = path.read_bytes()
    replaced = []

    def replace(source, target):
        replaced.append(Path(target).read_bytes())
        assert Path(source).parent == path.parent  # a rename across file systems is not atomic
        os.rename(source, target)

    monkeypatch.setattr(checkpoint_module.os, "replace", replace)
    write_tensors(path, {"a": torch.ones(4)}, {"note": "new"})
    assert replaced == [old]
    tensors, header = read_tensors(path, "")
    assert tensors["a"].tolist() == [1.0] * 4
    assert header == {"note": "new"}
    assert list(tmp_path.iterdir()) == [path]


# ---- other places for metrics ----------------------------------------------------------------------


METRICS = {"loss": 0.5, "error": 0.25}


def test_metrics_go_to_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    run(Learner(), tmp_path / "toy", SHORT, loggers=["tensorboard"])
    (events,) = (tmp_path / "tensorboard" / "toy").glob("events*")
    assert b"toy/loss" in events.read_bytes()


class Run:
    def __init__(self, **settings):
        self.settings, self.lines, self.finished = settings, [], False

    def log(self, metrics, step):
        self.lines.append((step, metrics))

    def finish(self):
        self.finished = True


@pytest.mark.parametrize("package", ["wandb", "trackio"])
def test_metrics_go_to_trackers(tmp_path, monkeypatch, package):
    runs = []
    fake = types.ModuleType(package)
    fake.init = lambda **settings: runs.append(Run(**settings)) or runs[-1]
    monkeypatch.setitem(sys.modules, package, fake)
    run(Learner(), tmp_path / "walker" / "toy", SHORT, loggers=[package])
    (tracked,) = runs
    assert tracked.finished
    assert (tracked.settings["project"], tracked.settings["name"]) == ("sageplan", "walker-toy")
    assert tracked.settings.get("dir") == (str(tmp_path / "walker") if package == "wandb" else None)
    ((step, metrics),) = tracked.lines
    wanted = read_metrics(tmp_path / "walker" / "toy" / LOG)[0]
    assert step == wanted.pop("step") == 5
    assert metrics == {f"toy/{key}": value for key, value in wanted.items()}


def test_trackers_are_closed_when_training_fails(tmp_path, monkeypatch):
    tracked = Run()
    fake = types.ModuleType("wandb")
    fake.init = lambda **_: tracked
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with pytest.raises(Stopped):
        run(Learner(at={2: stop}), tmp_path / "toy", SHORT, loggers=["wandb"])
    assert tracked.finished


@pytest.mark.parametrize(
    ("logger", "module"),
    [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb"), ("trackio", "trackio")],
)
def test_a_missing_tracker_names_its_extra(tmp_path, monkeypatch, logger, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"needs {logger}: pip install 'sageplan\[{logger}\]'"):
        open_sinks([logger], tmp_path, "toy", 0)


if __name__ == "__main__":  # the child that is killed
    torch.set_num_threads(1)
    loop.CHECKPOINT_SECONDS = 0.0
    hang = {KILLED_STEPS - 50: lambda: time.sleep(600)}  # should the parent be slow to kill
    run(Learner(pause=0.001, at=hang), Path(sys.argv[1]))


def test_seconds_add_up_over_sessions(tmp_path, monkeypatch):
    """Up to the last checkpoint: what a kill took away was not of use."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1)

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Learner(pause=0.001, at={450: stop}), tmp_path / "toy")
    _, header = read_tensors(tmp_path / "toy" / "checkpoint.safetensors", "a checkpoint")
    assert header["step"] == "400"
    assert float(header["seconds"]) > 0.4
    finished = run(Learner(), tmp_path / "toy")
    assert finished["first_step"] == 400
    assert finished["seconds"] >= 0.4
