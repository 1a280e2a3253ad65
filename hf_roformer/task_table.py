"""Which task a recipe's word means."""

from .arguments import TaskArguments
from .task_choices import MultipleChoice
from .task_embeddings import SentenceEmbedding
from .task_sequences import SequenceClassification
from .task_tokens import TokenClassification
from .tasks import Task

TASKS: dict[str, type[Task]] = {
    "sequence_classification": SequenceClassification,
    "token_classification": TokenClassification,
    "multiple_choice": MultipleChoice,
    "sentence_embedding": SentenceEmbedding,
}


def task_of(settings: TaskArguments) -> Task:
    """Return the task that the settings name."""
    if settings.task not in TASKS:
        raise ValueError(f"task {settings.task!r} cannot be trained yet; choose one of {', '.join(TASKS)}")
    return TASKS[settings.task](settings)
