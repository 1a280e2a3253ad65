"""Ask a fine-tuned model: the answer to a question, cut from a context of any length."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .answer_spans import Answer, answers_of, read_windows, reading_of
from .windows import run_rows


def answer_questions(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[str],
    contexts: Sequence[str],
    *,
    batch_size: int = 16,
    **reading: Any,
) -> list[list[Answer]]:
    """List the best answers to each question on its context, the best first; text "" says that there is none.

    reading: fields of `AnswerReading` that are to differ from how the model was taught.
    """
    how = reading_of(model.config, **reading)
    read = read_windows(tokenizer, questions, contexts, how)
    names = list(read.inputs)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*read.inputs.values(), strict=True)]
    starts, ends = [], []
    for outputs in run_rows(model, tokenizer, rows, batch_size):
        starts += list(outputs.start_logits.float().cpu().numpy())
        ends += list(outputs.end_logits.float().cpu().numpy())
    return answers_of(contexts, read.windows, starts, ends, how)


def answer_question(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, question: str, context: str, **settings: Any
) -> Answer:
    """Return the best answer; settings are those of `answer_questions`."""
    return answer_questions(model, tokenizer, [question], [context], **settings)[0][0]
