"""The page's sections in a real browser: writing, comparing, positions, training, tour and labs."""

from __future__ import annotations

import pytest

from tests.serve.reader import NEEDED, Reader

pytestmark = NEEDED
READERS = [("en-US", "desktop", "light"), ("zh-CN", "phone", "dark")]
LANGUAGES = pytest.mark.parametrize("reader", READERS, indirect=True, ids="-".join)


@LANGUAGES
def test_it_writes_token_by_token(reader: Reader) -> None:
    page = reader.open("?section=write&text=我爱你")
    page.wait_for_selector(".choices li")
    assert page.locator(".choices li").count() >= 10
    page.locator(".write .row button").nth(2).click()
    reader.until("document.querySelector('.written').innerText.includes('I')")
    page.locator(".choices li button", has_text="love").first.click()
    reader.until("document.querySelector('.written').innerText.includes('love')")
    assert "written=" in page.url
    assert page.locator(".cache rect.fresh").count() == 6  # K and V of three layers
    page.locator(".write input[type=range]").nth(1).fill("3")  # top-k
    reader.until("document.querySelectorAll('.choices li.cut').length >= 9")
    page.wait_for_selector(".tree .node.best")
    assert page.locator(".tree .node.pruned").count() > 3
    assert page.locator(".reasons li").count() > 0
    page.evaluate("scrollTo(0, 0)")
    reader.keep("write")
    page.locator(".write input.wide").fill("I like you.")
    page.wait_for_selector(".forced td >> text=like")


@LANGUAGES
def test_positions_and_words_are_drawn(reader: Reader) -> None:
    page = reader.open("?section=positions&text=我爱你")
    page.wait_for_selector(".positions canvas")
    page.locator(".positions input[type=range]").first.fill("128")
    reader.until("document.querySelector('.positions .panel').innerText.includes('128')")
    assert "width=128" in page.url
    page.locator(".positions .panel input:not([type=range])").fill("昨天")
    page.wait_for_selector(".words-map text >> text=今天")
    reader.keep("positions")


def test_nothing_can_be_stopped_or_saved_where_there_is_nothing(reader: Reader) -> None:
    nothing = {"records": [], "next": 0, "running": False, "failure": "", "folder": ""}
    reader.page.route("**/v1/runs/*/log?*", lambda route: route.fulfill(json=nothing))
    page = reader.open("?section=training")
    page.wait_for_selector(".training .empty")
    assert page.locator(".training .row button:disabled").count() == 1
    assert page.locator(".training .exports:visible").count() == 0


def test_a_model_without_rotary_positions_shows_what_they_would_do(reader: Reader) -> None:
    page = reader.open("?section=positions&text=我爱你")
    page.wait_for_selector("[data-panel='positions.rotary'] .note")
    assert page.locator(".arrows svg").count() == 12


@LANGUAGES
def test_the_tour_leads_through_the_page_and_lists_the_labs(reader: Reader) -> None:
    page = reader.open("?section=tour&text=我爱你")
    page.wait_for_selector(".stops li")
    assert page.locator(".stops li").count() == 15
    page.wait_for_selector(".lab button")
    assert page.locator(".lab").count() > 20
    reader.keep("tour")
    page.locator(".stops li button").nth(4).click()
    page.wait_for_selector("#path:not([hidden])")
    reader.until("document.body.dataset.section === 'river'")
    assert "self_attention.scores" in page.url
    page.locator("#path button").nth(1).click()
    reader.until("location.search.includes('self_attention.weights')")


@LANGUAGES
def test_training_can_be_watched(reader: Reader) -> None:
    page = reader.open("?section=training&text=我爱你")
    page.wait_for_selector(".training select")
    assert page.locator(".training .row button").count() == 2
    assert page.locator(".training .panel").count() == 4


@LANGUAGES
def test_one_word_is_compared_by_layer(reader: Reader) -> None:
    page = reader.open("?section=compare&word=苹果&sentences=我吃苹果&sentences=苹果很好")
    page.wait_for_selector(".cosines td")
    sights = page.locator(".sight")
    sights.nth(1).locator("button").nth(2).click()  # a word, on both sides
    assert sights.nth(0).locator(".unseen").count() == 0  # the encoder sees both sides of it
    assert sights.nth(1).locator(".unseen").count() > 0  # and here what came before alone
    asked = page.locator(".predictions tr.chosen th").all_inner_texts()
    assert len(asked) == 2 and asked[0] == asked[1]
    assert page.locator(".cosines td").count() == 4
    page.locator(".compare input[type=range]").fill("0")
    reader.until("document.querySelector('.cosines td').innerText === '1.00'")
    reader.keep("compare")
