"""docs/task_files.md is what the schema of task files says."""

from pathlib import Path

import pytest

from trainer.config.sections import Section
from trainer.finetune.document import task_page
from trainer.finetune.task import ColumnsSection, Task, TaskDataSection, TaskTrainingSection


def test_the_page_on_disk_is_up_to_date() -> None:
    assert Path("docs/task_files.md").read_text(encoding="utf-8") == task_page(), "Run `make docs`."


@pytest.mark.parametrize("section", [Task, TaskDataSection, ColumnsSection, TaskTrainingSection])
def test_every_key_has_a_description_and_is_on_the_page(section: type[Section]) -> None:
    page = task_page()
    for name, field in section.model_fields.items():
        assert field.description and field.description.endswith("."), name
        assert f"| `{name}` |" in page
