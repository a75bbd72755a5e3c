"""The table of architectures in docs/checkpoints.md is what the records say."""

from docs.write_architectures import COMMAND, PAGE, with_table


def test_the_page_is_up_to_date():
    page = PAGE.read_text(encoding="utf-8")
    assert f"<!-- architectures: {COMMAND} -->" in page
    assert with_table(page) == page, f"docs are stale; run: {COMMAND}"
