"""The library's Trainer, with nothing lost: whole checkpoints, exact resumes, and an end that says where to go on.

What a step draws (rows, dropout) follows from the seed, the epoch and the saved random state alone, so a run that was
killed and resumed ends with the bits of one that was not.
"""

import functools
import json
import logging
import math
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import torch
from huggingface_hub import HfApi
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import HubStrategy, TrainOutput
from transformers.utils import PushInProgress

from .checkpoints import (
    ASIDE,
    HOW_TO_RESUME,
    clear_aside,
    failed_write,
    flaw_of,
    last_whole,
    put_in_place,
    resume_point,
    rotate,
    seal,
)
from .fast_matmul import precision_now, products_as_before, products_at
from .hub_files import Target, look_at, push_folder
from .own_folders import refuse_unwritable, running_alone, write_whole
from .records import read_known
from .sharing import SharedBatches
from .stopping import Stopped, StopRequest
from .text_files import read_json

logger = logging.getLogger(__name__)

BAD_BATCH = "nan_batch.json"
# what a checkpoint says of the arithmetic that made it
ARITHMETIC, PRECISION = "arithmetic.json", "float32_matmul_precision"
NUMBERED = "rows are numbered from 0 as the prepared split lies: those of its batch"


def holding(training: TrainingArguments) -> AbstractContextManager[None]:
    """Hold a run's folder against other processes, where this one writes: a run should until its last file is there.

    Raises:
        FolderInUseError: where another process is at work in the folder.
    """
    folder = Path(str(training.output_dir))
    refuse_unwritable(folder)
    return running_alone(folder) if training.should_save else nullcontext()


def precision_before(checkpoint: Path | None) -> str | None:
    """Return the precision of products that a checkpoint was made with; None where it does not say."""
    path = None if checkpoint is None else checkpoint / ARITHMETIC
    if path is None or not path.is_file():
        return None
    told = read_json(path, "resume from another checkpoint")
    return read_known({PRECISION: Literal["highest", "high", "medium"]}, told, str(path)).get(PRECISION)


class SaveAtTheRightTime(TrainerCallback):
    """Save after a requested stop; and where a step ends its epoch, save after the epoch's evaluation.

    A checkpoint from between the two would be resumed behind an evaluation that never ran.
    """

    def __init__(self, trainer: "ResumableTrainer") -> None:
        self.trainer = trainer
        self.deferred = False

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Tell the sampler the epoch: behind a loader that skips batches the library does not reach it."""
        loader = kwargs.get("train_dataloader")
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(int(state.epoch or 0))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Ask for a checkpoint, now or at the end of the epoch."""
        if self.trainer.stop_asked():
            # the run is left by `on_save`
            control.should_save = True
        self.deferred = control.should_save and float(state.epoch).is_integer()
        control.should_save = control.should_save and not self.deferred

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Ask for the checkpoint that the epoch's last step wanted."""
        control.should_save = control.should_save or self.deferred
        self.deferred = False

    def on_save(self, *_: Any, **__: Any) -> None:
        """Leave, where that was asked for."""
        self.trainer.leave_if_asked()


class ResumableTrainer(SharedBatches):
    """Train as the library does, and lose nothing when the run is killed, stopped, or finds no room."""

    def __init__(self, model: Any = None, args: Any = None, *others: Any, **kwargs: Any) -> None:
        if args is not None:
            refuse_unwritable(Path(args.output_dir))
        super().__init__(model, args, *others, **kwargs)
        # one look at the end of each optimizer step replaces the library's two at every micro-batch
        self.args.logging_nan_inf_filter = False
        self._request = StopRequest()
        self._agreed_signal = 0
        self._aside: str | None = None
        self._precision: str | None = None
        self._losses: list[Tensor] = []
        self._ids: list[Tensor | None] = []
        self.add_callback(SaveAtTheRightTime(self))

    @property
    def folder(self) -> Path:
        """Where the run's checkpoints lie."""
        return Path(str(self.args.output_dir))

    # writing and finding checkpoints

    def _get_output_dir(self, trial: Any) -> str:
        return self._aside or super()._get_output_dir(trial)

    def checkpoint_bytes(self) -> int:
        """Add up what a checkpoint holds, bar a few small files: the weights and the optimizer's state."""
        states = self.optimizer.state.values() if self.optimizer is not None else []
        # of a network with adapters, what learns is all that is written
        adapted = hasattr(self.model, "peft_config")
        written = [weight for weight in self.model.parameters() if weight.requires_grad or not adapted]
        tensors = [*written, *(value for state in states for value in state.values())]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors if torch.is_tensor(tensor))

    def _finish_checkpoint(self, staged: Path, folder: Path) -> None:
        final = folder / staged.name
        if self.state.best_model_checkpoint == str(final):
            self.state.save_to_json(str(staged / "trainer_state.json"))
        precision = precision_now()
        if precision is not None:
            (staged / ARITHMETIC).write_text(json.dumps({PRECISION: precision}), encoding="utf-8")
        seal(staged)
        put_in_place(staged, final)
        rotate(folder, self.args.save_total_limit, self.state.best_global_step)

    def _write_aside(self, folder: Path, model: nn.Module, trial: Any) -> None:
        staged = folder / ASIDE / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            needed = self.checkpoint_bytes()
            if shutil.disk_usage(clear_aside(folder)).free < needed:
                raise OSError("No space left on device")
        self.accelerator.wait_for_everyone()
        self._aside = str(staged.parent)
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._aside = None
        self.accelerator.wait_for_everyone()
        if self.state.best_global_step == self.state.global_step:
            # every process loads it in the end, from where one of them puts it
            self.state.best_model_checkpoint = str(folder / staged.name)
        if self.args.should_save:
            self._finish_checkpoint(staged, folder)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder, name = Path(self._get_output_dir(trial)), f"checkpoint-{self.state.global_step}"
        try:
            self._write_aside(folder, model, trial)
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(folder / ASIDE, ignore_errors=True)
            if not _is_failed_write(error):
                raise
            raise failed_write(folder, name, self.checkpoint_bytes(), error) from error
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(folder / name))

    def _was_finished(self) -> bool:
        """Tell whether the checkpoint is a run's last: it reached its steps, or had lost its patience."""
        callbacks: Any = self.state.stateful_callbacks
        stored = callbacks.get("EarlyStoppingCallback")
        if stored and self.args.restore_callback_states_from_checkpoint:
            waited, patience = stored["attributes"].values(), stored["args"]["early_stopping_patience"]
            return max(waited) >= patience or self.state.global_step >= self.state.max_steps
        return self.state.global_step >= self.state.max_steps

    def _look_at_best(self, best: Path) -> None:
        """Say where the best network lies now; one that could not be loaded in the end is no longer the best."""
        # the folder may have been moved, or be named otherwise from here
        if best.is_dir():
            self.state.best_model_checkpoint = str(best)
        if not self.args.load_best_model_at_end:
            return
        flaw = flaw_of(best) if best.is_dir() else "it is not there"
        if flaw is not None:
            logger.warning("%s, the best so far, is left out: %s; the best is chosen from now on", best, flaw)
            self.state.best_metric = self.state.best_global_step = self.state.best_model_checkpoint = None

    def _init_training_state(self, max_steps: int, steps_an_epoch: int, epochs: int, *others: Any) -> tuple[int, int]:
        trained = super()._init_training_state(max_steps, steps_an_epoch, epochs, *others)
        if self.state.best_global_step:
            self._look_at_best(self.folder / f"checkpoint-{self.state.best_global_step}")
        # the library would take a step more where the last one lay in mid-epoch
        return (epochs, 0) if self._was_finished() else trained

    # the Hub

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        """Settle the repository's name; it is made at the first push, so that no network stands before a training."""
        self.hub_model_id: Any = self.args.hub_model_id or self.folder.absolute().name
        self.push_in_progress: Any = None
        self._drafted_card = False

    def _send(self, folder: Path, message: str, replaced: Sequence[str] = ("*",), **told: Any) -> Any:
        """Bring a folder to the Hub in one commit."""
        api, token = HfApi(), told.get("token") or self.args.hub_token
        private = self.args.hub_private_repo if told.get("private") is None else told["private"]
        # untold, nobody else sees it
        private = private is None or private
        made = api.create_repo(str(self.hub_model_id), token=token, private=private, exist_ok=True)
        revision = told.get("revision") or getattr(self.args, "hub_revision", None)
        place = Target(made.repo_id, revision, False, token)
        return push_folder(api, folder, place, look_at(api, place), message=message, replaced=replaced).commit

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Publish the run's folder as the library does, with checksums and without what is a training's own.

        The folder is on the disk before any network is touched. A card that lies there stays; else one is drafted.
        """
        with holding(self.args):
            self.callback_handler.on_push_begin(self.args, self.state, self.control)
            if self.hub_model_id is None:
                self.init_hf_repo()
            self.save_model(_internal_call=True)
            if not self.is_world_process_zero():
                return None
            if self._drafted_card or not (self.folder / "README.md").is_file():
                name = kwargs.pop("model_name", None) or str(self.hub_model_id).split("/")[-1]
                self.create_model_card(model_name=name, **kwargs)
                self._drafted_card = True
            self._finish_current_push()
            told: dict[str, Any] = {"token": token, "revision": revision, "private": private}
            send = functools.partial(self._send, self.folder, commit_message or "End of training", **told)
            return send() if blocking else HfApi().run_as_future(send)

    def _send_state(self, checkpoint: Path, message: str) -> Any:
        """Bring a checkpoint to the Hub, to be resumed from; the pickled arguments, with their token, stay."""
        last = self.args.hub_strategy == HubStrategy.CHECKPOINT
        return HfApi().upload_folder(
            repo_id=str(self.hub_model_id),
            folder_path=checkpoint,
            path_in_repo="last-checkpoint" if last else checkpoint.name,
            commit_message=f"{message}, checkpoint",
            token=self.args.hub_token,
            revision=getattr(self.args, "hub_revision", None),
            ignore_patterns=["training_args.bin"],
        )

    def _push_checkpoint(self, checkpoint: Path, message: str) -> None:
        """Push in the background; a push that fails is told of, and stops no training."""
        try:
            # the card and the tokenizer's files of an earlier push stay
            self._send(checkpoint, message, ("model*.safetensors", "model*.safetensors.index.json"))
            if self.args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
                self._send_state(checkpoint, message)
        except Exception as error:
            logger.warning(
                "%s could not be pushed (%s): the training goes on, and a later push brings what is missing; or "
                "publish the run's folder at its end by scripts/publish.py",
                checkpoint,
                " ".join(str(error).split()),
            )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        # not before the checkpoint lies where it will stay
        if self._aside is not None or not self.is_world_process_zero():
            return
        busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if self.args.hub_strategy == HubStrategy.END or (busy and not self.args.hub_always_push):
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        message = f"Training in progress, step {self.state.global_step}"
        job = HfApi().run_as_future(self._push_checkpoint, Path(checkpoint_folder), message)
        jobs: Any = [*(self.push_in_progress.jobs if busy else []), job]
        self.push_in_progress = PushInProgress(jobs)

    # leaving early

    def stop_asked(self) -> bool:
        """Tell whether any process was asked to stop; all of them learn it at the same step."""
        self._agreed_signal = self._request.signum
        if self.args.world_size > 1:
            asked = torch.tensor(self._request.signum, device=self.args.device)
            torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX)
            self._agreed_signal = int(asked)
        return bool(self._agreed_signal)

    def where_to_go_on(self) -> str:
        """Name the last whole checkpoint and how to continue from it."""
        whole = last_whole(self.folder, read=False)
        return f"{whole} is whole: {HOW_TO_RESUME}" if whole else f"{self.folder} holds no whole checkpoint yet"

    def leave_if_asked(self) -> None:
        """End the run with the exit code of the signal that asked for it."""
        if self._agreed_signal:
            words = f"stopped after step {self.state.global_step}; {self.where_to_go_on()}"
            if self.args.should_log:
                logger.warning(words)
            raise Stopped(self._agreed_signal, words)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Take a micro-batch; before the optimizer's step, look once whether each of its losses is a number."""
        self._ids.append(inputs.get("input_ids"))
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._losses.append(loss)
        if self.accelerator.sync_gradients:
            losses, ids, self._losses, self._ids = torch.stack(self._losses), self._ids, [], []
            if not losses.isfinite().all():
                self._leave_bad_batch(losses.tolist(), ids)
        return loss

    def _rows_of_step(self, num_batches: int) -> list[list[int]] | None:
        """Find the rows of this step's micro-batches by asking for the epoch's order again."""
        loader: Any = self.callback_handler.train_dataloader
        if getattr(loader, "batch_sampler", None) is None:
            return None
        per_step = self.args.gradient_accumulation_steps
        epoch, step = divmod(self.state.global_step, math.ceil(len(loader) / per_step))
        loader.set_epoch(epoch)
        return [list(rows) for rows in islice(loader.batch_sampler, step * per_step, step * per_step + num_batches)]

    def _text_of(self, row: int) -> str | None:
        ids, tokenizer = self.train_dataset[row].get("input_ids"), cast(Any, self.processing_class)
        return None if ids is None or tokenizer is None else tokenizer.decode(ids)

    def _leave_bad_batch(self, losses: list[float], ids: list[Tensor | None]) -> None:
        rows = self._rows_of_step(len(losses))
        what = NUMBERED if rows else "the rows of a stream have no numbers: the token ids of its batch"
        bad = [number for number, loss in enumerate(losses) if not math.isfinite(loss)]
        batches: list[dict[str, Any]] = [{"loss": str(losses[number])} for number in bad]
        for number, batch in zip(bad, batches, strict=True):
            if rows:
                batch["rows"] = {row: self._text_of(row) for row in rows[number]}
            else:
                held = ids[number]
                batch["token_ids"] = None if held is None else held.tolist()
        told = {"step": self.state.global_step + 1, "epoch": self.state.epoch, "holds": what, "micro_batches": batches}
        path = self.folder / BAD_BATCH
        place = f"are in {path}"
        try:
            write_whole(path, json.dumps(told, ensure_ascii=False, indent=1))
        except OSError as error:
            place = f"could not be written down ({error})"
        raise FloatingPointError(
            f"the loss of step {told['step']} is {batches[0]['loss']}: {what} {place}. Look at "
            f"them, or lower learning_rate; no weight has taken this step. {self.where_to_go_on()}"
        )

    # the run

    def _train_watched(self, *args: Any, **others: Any) -> TrainOutput:
        try:
            outcome = super().train(*args, **others)
        except Stopped:
            # progress bars and reports are closed as after a whole run
            self.callback_handler.on_train_end(self.args, self.state, self.control)
            raise
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise RuntimeError(
                f"a dataloader worker died after step {self.state.global_step} ({error}): often memory ran out, "
                f"which a lower dataloader_num_workers (0: none) or batch size spares. {self.where_to_go_on()}"
            ) from error
        self._agreed_signal = self._request.signum
        self.leave_if_asked()
        return outcome

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **others: Any) -> TrainOutput:
        """Train, or continue: True takes the last whole checkpoint of the folder.

        Raises: Stopped, with the signal's exit code, after SIGINT or SIGTERM; FloatingPointError where the loss is no
            number; OSError where there is no room for a checkpoint; FolderInUseError where another process is at work
            in the folder.
        """
        self._losses, self._ids = [], []
        with holding(self.args), self._request:
            checkpoint = resume_point(self.folder, resume_from_checkpoint)
            with products_as_before(precision_before(Path(checkpoint) if checkpoint else None)):
                self._precision = precision_now()
                return self._train_watched(checkpoint, *args, **others)

    def as_trained(self) -> AbstractContextManager[None]:
        """Compute with the float32 products of the training, as what a run without a break goes on with."""
        return products_at(self._precision)


def _is_failed_write(error: BaseException) -> bool:
    """Tell whether a disk refused: torch and safetensors have errors of their own for that."""
    words = ("unexpected pos", "inline_container", "iostream", "PytorchStreamWriter")
    return isinstance(error, (OSError, SafetensorError)) or any(word in str(error) for word in words)
