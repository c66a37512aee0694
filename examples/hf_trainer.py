"""LPSGDM in Hugging Face's Trainer: p by total steps, accumulation, bf16, resume from a checkpoint.

    python examples/hf_trainer.py [--bf16]

The model is a GPT-2 of two small layers with random weights, the text is made up: nothing is
downloaded.
"""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from lpsgd import LPSGDM, CosineP

STEPS, ACCUMULATION = 8, 2


class Text(Dataset):
    """Sixteen tokens that count upwards from a random start."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) + 7 * index) % 32
        return {"input_ids": tokens, "labels": tokens}


class StopAt(TrainerCallback):
    """Ends the training after a step, as a job's time limit would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


def trainer(folder: str, *, bf16: bool = False, stop: int | None = None) -> Trainer:
    set_seed(0)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=STEPS,  # optimizer steps: with accumulation each takes two batches
        per_device_train_batch_size=4,
        gradient_accumulation_steps=ACCUMULATION,
        weight_decay=0.01,
        lr_scheduler_type="cosine",
        bf16=bf16,
        save_steps=4,
        logging_steps=1,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
    )
    return Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Text(),
        optimizer_cls_and_kwargs=(
            LPSGDM,
            {"lr": 3e-3, "p": CosineP(6, total_steps=arguments.max_steps)},
        ),
        callbacks=[StopAt(stop)] if stop else None,
    )


def losses(finished: Trainer) -> list[float]:
    return [entry["loss"] for entry in finished.state.log_history if "loss" in entry]


def main() -> None:
    parser = argparse.ArgumentParser(description="LPSGDM in Hugging Face's Trainer")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16")
    bf16 = parser.parse_args().bf16
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as parts:
        uninterrupted = trainer(whole, bf16=bf16)
        uninterrupted.train()
        trainer(parts, bf16=bf16, stop=4).train()
        resumed = trainer(parts, bf16=bf16)
        resumed.train(resume_from_checkpoint=True)
    first, last = losses(uninterrupted)[0], losses(uninterrupted)[-1]
    p = [group["p"] for group in resumed.optimizer.param_groups]
    print(f"loss {first:.4f} -> {last:.4f}, p at the end {p[0]}")
    print(f"resumed at step 4: the same losses: {losses(resumed) == losses(uninterrupted)}")


if __name__ == "__main__":
    main()
