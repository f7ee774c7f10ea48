"""Links in the documentation lead to existing files and headings."""

import re

import pytest

from tespec.core.paths import REPOSITORY

PAGES = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")]


def anchors(text: str) -> set[str]:
    """Anchors that GitHub generates for the headings."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked.read_text()), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_page_holds_a_merge_marker(page):
    assert not re.findall(r"^(?:<{7}|={7}|>{7})", page.read_text(), re.MULTILINE)
