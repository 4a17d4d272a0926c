"""One contract year from a file, by the same rules as the ledger: read, evaluate, answer. Pure."""

from .answer import answer_data, answer_text
from .book import FileRefused
from .evaluation import year_evaluated
from .reading import file_read

__all__ = ["FileRefused", "answer_data", "answer_text", "file_read", "year_evaluated"]
