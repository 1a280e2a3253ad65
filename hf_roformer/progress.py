"""One line that tells how a run is going: loss, learning rate, tokens a second, and the time left."""

from typing import Any

from transformers import ProgressCallback, Trainer, TrainerControl, TrainerState, TrainingArguments

# what is logged, and how the line calls it
SHOWN = {"loss": "loss", "learning_rate": "lr", "tokens_per_second": "tokens/s"}
STOPWATCH = ("_runtime", "_per_second", "_time", "_flos")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def evaluation_line(logs: dict[str, Any], step: int) -> str:
    """Tell an evaluation in a line, without its stopwatch."""
    told = {name: value for name, value in logs.items() if name.startswith("eval_") and not name.endswith(STOPWATCH)}
    return f"step {step}: " + ", ".join(
        f"{name.removeprefix('eval_')} {_short(value)}" for name, value in told.items()
    )


class ProgressLine(ProgressCallback):
    """The library's bar, which tells the time left, with what is logged beside it and a line an evaluation."""

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any
    ) -> None:
        """Put the newest numbers behind the bar."""
        if not state.is_world_process_zero or self.training_bar is None:
            return
        if any(name.startswith("eval_") for name in logs):
            self.training_bar.write(evaluation_line(logs, state.global_step))
        elif shown := {word: _short(logs[name]) for name, word in SHOWN.items() if name in logs}:
            self.training_bar.set_postfix(shown)


def show_progress(trainer: Trainer) -> None:
    """Let a Trainer that shows a bar show this one."""
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(ProgressLine())
