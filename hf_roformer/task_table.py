"""Which task a recipe's word means."""

from .arguments import TaskArguments
from .task_choices import MultipleChoice
from .task_documents import DocumentClassification
from .task_embeddings import SentenceEmbedding
from .task_questions import QuestionAnswering
from .task_sequences import SequenceClassification
from .task_tokens import TokenClassification
from .tasks import Task

TASKS: dict[str, type[Task]] = {
    "sequence_classification": SequenceClassification,
    "token_classification": TokenClassification,
    "question_answering": QuestionAnswering,
    "multiple_choice": MultipleChoice,
    "sentence_embedding": SentenceEmbedding,
}


def task_of(settings: TaskArguments) -> Task:
    """Return the task that the settings name."""
    if settings.long_texts != "truncate":
        return DocumentClassification(settings)
    return TASKS[settings.task](settings)
