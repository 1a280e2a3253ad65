"""Which task a recipe's word means."""

from .arguments import TaskArguments
from .task_documents import DocumentClassification
from .task_questions import QuestionAnswering
from .task_sequences import SequenceClassification
from .tasks import Task

TASKS: dict[str, type[Task]] = {
    "sequence_classification": SequenceClassification,
    "question_answering": QuestionAnswering,
}


def task_of(settings: TaskArguments) -> Task:
    """Return the task that the settings name."""
    if settings.task not in TASKS:
        raise ValueError(f"task {settings.task!r} cannot be trained yet; choose one of {', '.join(TASKS)}")
    if settings.long_texts != "truncate":
        return DocumentClassification(settings)
    return TASKS[settings.task](settings)
