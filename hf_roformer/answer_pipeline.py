"""The pipeline for questions, which the library no longer has.

A saved question-answering model names it in its config, so `pipeline("question-answering", folder,
trust_remote_code=True)` finds it. Questions are read as the model was taught; a context of any length is read through
windows, which are batched like any other rows.
"""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers.pipelines.base import ChunkPipeline

from .answer_spans import Answer, AnswerReading, Window, answers_of, read_windows, reading_of

# what the library's own pipeline called them
THEIR_NAMES = {
    "doc_stride": "window_overlap",
    "max_answer_len": "max_answer_length",
    "max_question_len": "max_question_length",
    "max_seq_len": "max_length",
}
PARTS = ("question", "context")

# its methods are typed for what the base class alone does
InWindows: Any = ChunkPipeline


def pair_up(question: str | Sequence[str], context: str | Sequence[str]) -> dict[str, str] | list[dict[str, str]]:
    """Put each question to its context; one context serves several questions, and the other way round."""
    if isinstance(question, str) and isinstance(context, str):
        return {"question": question, "context": context}
    number = len(context if isinstance(question, str) else question)
    questions, contexts = ([given] * number if isinstance(given, str) else given for given in (question, context))
    if len(questions) != len(contexts):
        raise ValueError(f"{len(questions)} questions for {len(contexts)} contexts: give each question one context")
    return [{"question": one, "context": other} for one, other in zip(questions, contexts, strict=True)]


def read_asked(asked: Any) -> tuple[str, str]:
    """Return a question and its context, and refuse what is none."""
    if not isinstance(asked, Mapping):
        raise ValueError(f"{asked!r:.80} is no question: give a dict with question and context, or a list of such")
    for part in PARTS:
        if not isinstance(asked.get(part), str) or not asked[part].strip():
            raise ValueError(f"the {part} is {asked.get(part)!r:.80}: give a text that is not empty")
    return asked["question"], asked["context"]


def as_told(answer: Answer) -> dict[str, Any]:
    """Call the parts of an answer as the library's own pipeline did."""
    return {"score": answer.score, "start": answer.start, "end": answer.end, "answer": answer.text}


class HFRoFormerQuestionAnsweringPipeline(InWindows):
    """Answer questions by what their contexts say."""

    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __call__(
        self,
        asked: Any = None,
        *,
        question: str | Sequence[str] | None = None,
        context: str | Sequence[str] | None = None,
        **options: Any,
    ) -> Any:
        """Return `score`, `start`, `end` and `answer`; "" is no answer.

        Args:
            asked: a dict with `question` and `context`, a list of such, or a dataset of such.
            question: the question in its place; `context` then is its text. Either may be a list.
            options: `batch_size`; `top_k` for a list of so many answers, the best first; `handle_impossible_answer`
                for whether there may be none; and the fields of `AnswerReading`, or the library's names for them.
        """
        if asked is None:
            if question is None or context is None:
                raise ValueError("nothing is asked: give question and context")
            asked = pair_up(question, context)
        return super().__call__(asked, **options)

    def _sanitize_parameters(
        self, top_k: int | None = None, handle_impossible_answer: bool | None = None, **told: Any
    ) -> tuple[dict, dict, dict]:
        reading = {THEIR_NAMES.get(name, name): value for name, value in told.items()}
        known = [field.name for field in dataclasses.fields(AnswerReading)]
        for name in told:
            if THEIR_NAMES.get(name, name) not in known:
                near = difflib.get_close_matches(name, [*known, *THEIR_NAMES], n=1, cutoff=0.0)[0]
                raise TypeError(f"a pipeline for questions takes no argument {name!r}; the nearest is {near!r}")
        if handle_impossible_answer is not None:
            taught = reading_of(self.model.config).null_threshold
            reading["null_threshold"] = (taught or 0.0) if handle_impossible_answer else None
        return reading, {}, reading if top_k is None else {"top_k": top_k, **reading}

    def preprocess(self, asked: Any, **reading: Any) -> Iterator[dict[str, Any]]:
        """Yield the windows of one question."""
        question, context = read_asked(asked)
        read = read_windows(self.tokenizer, [question], [context], reading_of(self.model.config, **reading))
        for number, window in enumerate(read.windows, 1):
            inputs = {name: torch.tensor([values[number - 1]]) for name, values in read.inputs.items()}
            yield {"is_last": number == len(read.windows), "window": window, "context": context, **inputs}

    def _forward(self, inputs: dict[str, Any]) -> dict[str, Any]:
        kept = {name: inputs.pop(name) for name in ("is_last", "window", "context")}
        outputs = self.model(**inputs)
        scores = {"start": outputs.start_logits, "end": outputs.end_logits}
        return {**scores, "visible": inputs["attention_mask"].bool(), **kept}

    def postprocess(self, outputs: list[dict[str, Any]], top_k: int = 1, **reading: Any) -> Any:
        """Return the best answer over the windows of one question, or the `top_k` best."""
        how = reading_of(self.model.config, **reading)
        context, windows = outputs[0]["context"], [Window(*output["window"]) for output in outputs]
        # on whichever side the batch was padded
        start_NL, end_NL = (
            [output[name][output["visible"]].float().numpy() for output in outputs] for name in ("start", "end")
        )
        best = answers_of([context], windows, start_NL, end_NL, how)[0][:top_k]
        return as_told(best[0]) if top_k == 1 else [as_told(answer) for answer in best]


__all__ = ["HFRoFormerQuestionAnsweringPipeline"]
