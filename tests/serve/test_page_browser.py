"""The page in a real browser: typing, the river, the inspector, heads, changes; both languages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import qkv
from qkv.inspect import Trace
from tests.serve.reader import NEEDED, Reader

pytestmark = NEEDED
CROSS = "decoder.2.cross_attention"


@pytest.fixture(scope="module")
def trace() -> Trace:
    return qkv.load("zh-en", device="cpu").trace("我爱你")


EVERYONE = [
    ("en-US", "desktop", "light"),
    ("zh-CN", "desktop", "dark"),
    ("zh-CN", "phone", "light"),
]
TABS = {"en-US": "River", "zh-CN": "数据流"}


@pytest.mark.parametrize("reader", EVERYONE, indirect=True, ids="-".join)
def test_the_page_opens_with_an_example_that_runs(reader: Reader, trace: Trace) -> None:
    page = reader.open()
    language = page.evaluate("navigator.language")
    assert page.input_value("#text") == "我爱你"
    assert reader.text(".output .whole") == "I love you."
    assert reader.text(".words").startswith("I love you")
    assert reader.text("[role=tab][aria-selected=true]") == TABS[language]
    assert "text=" in page.url
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0
    reader.until("document.querySelector('.ribbons path')")
    reader.keep("river")
    if page.viewport_size["width"] > 1000:
        assert page.locator(".arcs .ribbon").count() >= 5  # cross-attention, to each word
    page.hover(".word >> nth=1")  # lights the source words that it looks at
    looks = torch.stack([trace[f"decoder.{n}.cross_attention.weights"][0, :, 1] for n in range(3)])
    opacities = "all => all.map(box => +box.getAttribute('opacity'))"
    found = page.eval_on_selector_all(".heat", opacities)
    assert found[:4] == pytest.approx((0.9 * looks.mean((0, 1))).tolist(), abs=5e-3)


def test_typing_answers_and_opens_alternatives(reader: Reader) -> None:
    page = reader.open()
    page.fill("#text", "他喜欢狗。")
    reader.until("document.querySelector('.words').innerText.includes('dog')")
    reader.until("location.search.includes('%E4%BB%96')")
    page.click(".word >> nth=1")
    found = page.locator(".word[open] .candidates li .name").all_inner_texts()
    steps = qkv.load("zh-en", device="cpu").trace("他喜欢狗。").steps(5)
    assert found == [x.name.removeprefix("▁") for x in steps[1].candidates]
    page.keyboard.press("Escape")
    assert page.locator(".word[open]").count() == 0


def test_another_word_is_written_on_from(reader: Reader) -> None:
    page = reader.open()
    page.click(".word >> nth=1")
    other = page.locator(".word[open] .candidates button").nth(1)
    name = other.locator(".name").inner_text()
    other.click()
    page.wait_for_selector(".written .newest")
    assert page.inner_text(".written .newest") == name
    page.go_back()
    reader.until("document.body.dataset.section === 'river'")


def test_back_restores_the_text_even_in_the_field(reader: Reader) -> None:
    page = reader.open()
    page.click(".examples .chip >> nth=1")
    reader.until("document.querySelector('.words').innerText.includes('name')")
    page.focus("#text")
    page.go_back()
    reader.until("document.querySelector('.words').innerText.includes('love')")
    assert page.input_value("#text") == "我爱你"


@pytest.mark.parametrize("where", ["changes=x", "section=x", "at=x&open=x.1&head=99&row=99"])
def test_an_address_that_names_nothing_still_opens_the_page(reader: Reader, where: str) -> None:
    page = reader.page
    page.goto(f"{reader.address}/?{where}")
    page.wait_for_selector("#inspector .facts")
    if "changes" in where:
        assert "is no change" in reader.text(".output")
        page.click("#reset")
    page.wait_for_selector(".river .node.closed")
    reader.until("document.querySelector('.words').innerText.includes('love')")
    reader.troubles.clear()  # the browser reports the refused change


def test_a_section_without_a_text_says_what_to_do(reader: Reader) -> None:
    page = reader.open("?section=write")
    page.wait_for_selector(".choices li")
    page.fill("#text", "")
    page.wait_for_selector("#empty")
    assert not page.is_visible("#section-write")
    page.fill("#text", "我爱你")
    page.wait_for_selector(".choices li")


def test_a_model_of_images_takes_a_file(reader: Reader, tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="needs Pillow")
    pillow.effect_noise((8, 8), 90).save(tmp_path / "a.png")
    page = reader.open()
    page.select_option("#model", "images")
    page.wait_for_selector("#upload")
    assert not page.is_visible("#text")
    (tmp_path / "a.txt").write_text("no image")
    page.set_input_files("#file", tmp_path / "a.txt")
    page.wait_for_selector("#notice >> text=a.txt")
    page.set_input_files("#file", tmp_path / "a.png")
    page.wait_for_selector(".candidates li")
    assert page.locator(".candidates li").count() == 3
    page.wait_for_selector(".river .node >> nth=0")
    assert "text=data" in page.url
    assert page.is_visible("#picture")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.click("#tab-heads")
    page.wait_for_selector(".head-cell")


def test_a_text_that_cannot_be_read_is_explained(reader: Reader) -> None:
    page = reader.open()
    page.fill("#text", "好" * 600)
    page.wait_for_selector(".output .error")
    assert "at most" in reader.text(".output")
    page.fill("#text", "")
    page.wait_for_selector(".output .quiet")
    reader.troubles.clear()  # the browser reports the refused request


def test_a_layer_opens_into_its_graph_and_escape_leads_out(reader: Reader) -> None:
    page = reader.open()
    page.click('[data-at="decoder.2"]')
    page.wait_for_selector(f'[data-at="{CROSS}.weights"]')
    labels = page.locator(".graph >> nth=1").locator("text").all_text_contents()
    for label in ("Q", "K", "V", "QKᵀ", "÷√d", "+ M", "softmax", "Σ a·v", "WO", "+", "ReLU"):
        assert label in labels
    page.click(f'.node[data-at="{CROSS}.weights"]')
    reader.until(f"location.search.includes('at={CROSS}.weights')")
    page.wait_for_selector("#inspector .map")
    page.keyboard.press("Escape")
    reader.until("new URLSearchParams(location.search).get('at') === 'decoder.2'")
    page.keyboard.press("Escape")
    reader.until("!location.search.includes('decoder.2')")
    page.go_back()
    page.wait_for_selector(f'[data-at="{CROSS}.weights"]')


@pytest.mark.parametrize("reader", EVERYONE, indirect=True, ids="-".join)
def test_a_cell_shows_the_numbers_of_the_trace(reader: Reader, trace: Trace) -> None:
    where = f"?open=decoder.2&at={CROSS}.weights&head=2&row=1&column=1"
    page = reader.open(where)
    page.wait_for_selector("#inspector .worked li")
    shown = float(page.get_attribute("#inspector [data-value]", "data-value") or "nan")
    assert shown == pytest.approx(float(trace[f"{CROSS}.weights"][0, 2, 1, 1]), abs=1e-6)
    symbols = page.locator(".worked .symbol").all_inner_texts()
    assert symbols[:3] == ["q·k", "÷ √dk", "+ M"]
    product = page.locator(".worked li >> nth=0").locator(".number").inner_text()
    expected = float(trace[f"{CROSS}.products"][0, 2, 1, 1])
    assert float(product.replace("−", "-").lstrip("= ")) == pytest.approx(expected, abs=1e-3)
    page.evaluate("document.querySelector('.as-table').open = true")
    cells = page.locator(".as-table tbody tr >> nth=1").locator("td").all_inner_texts()
    row = trace[f"{CROSS}.weights"][0, 2, 1].tolist()
    assert [float(cell.replace("−", "-")) for cell in cells] == pytest.approx(row, abs=2e-3)
    reader.keep("cell")


def test_the_river_is_walked_with_the_keyboard(reader: Reader) -> None:
    page = reader.open()
    page.focus(".stage")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    reader.until("new URLSearchParams(location.search).get('row') === '1'")
    assert "at=source." in page.url
    page.wait_for_selector("#inspector .map")
    page.keyboard.press("Enter")
    page.wait_for_selector("#inspector .map canvas:focus")
    page.keyboard.press("ArrowRight")
    reader.until("location.search.includes('column=1')")
    page.wait_for_selector("#inspector .map canvas:focus")


def test_heads_are_shown_as_maps_and_as_lines(reader: Reader, trace: Trace) -> None:
    page = reader.open("?section=heads")
    page.wait_for_selector(".head-large .map")
    assert page.locator(".head-cell").count() == 3 * 4
    page.click(f'.head-cell[data-key="{CROSS}.weights"][data-head="3"]')
    reader.until("location.search.includes('head=3')")
    slider = page.locator(".head-controls input[type=range]")
    box = slider.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 10, box["y"] + 10)
    page.mouse.down()
    for share in (0.3, 0.6, 0.9):  # it stays in the hand
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 10)
    page.mouse.up()
    assert float(slider.input_value()) > 0.4
    slider.fill("0.05")
    page.click(".head-large [role=radio] >> nth=1")
    page.wait_for_selector(".lines path")
    weights = trace[f"{CROSS}.weights"][0, 3]
    assert page.locator(".lines path").count() == int((weights >= 0.05).sum())
    page.hover(".line-word >> nth=0")
    lit = page.eval_on_selector_all(
        ".lines path",
        "all => all.filter(path => +path.getAttribute('stroke-opacity') > 0.1).length",
    )
    assert lit == int((weights[0] >= 0.05).sum())
    reader.keep("heads")


@pytest.mark.parametrize("reader", EVERYONE, indirect=True, ids="-".join)
def test_a_change_shows_what_moved_and_reset_takes_it_back(reader: Reader, trace: Trace) -> None:
    cross = "decoder.0.cross_attention"
    page = reader.open("?at=decoder.0&open=decoder.0")
    page.click(f'[data-change="off:{cross}"]')
    page.wait_for_selector(".word.changed")
    assert "changes=off" in page.url
    became = page.locator(".became").all_inner_texts()
    best = [step.candidates[0].name for step in trace.silence(cross).steps(1)]
    before = [step.candidates[0].name for step in trace.steps(1)]
    moved = [new.removeprefix("▁") for new, old in zip(best, before, strict=True) if new != old]
    assert became == moved
    page.wait_for_selector(".node.changed")  # drawn after the words
    reader.keep("change")
    page.click("#reset")
    reader.until("!document.querySelector('.word.changed')")
    assert "changes=" not in page.url


def test_the_key_says_what_the_strips_show(reader: Reader) -> None:
    page = reader.open(f"?changes=off:{CROSS}")
    page.wait_for_selector(".river-key .swatch.moved")
    page.click("#changes input[type=checkbox]")
    page.wait_for_selector(".river-key .swatch.strip")
    assert not page.locator(".river-key .swatch.moved").count()


def test_no_station_s_name_is_wider_than_its_pill(reader: Reader) -> None:
    page = reader.open("?open=decoder.2")
    page.wait_for_selector(".node.q")
    rooms = page.evaluate(
        """async () => {
            const { pillWidth } = await import("/page/layout.js");
            const text = document.querySelector(".node text");
            return ["RMSNorm", "LayerNorm", "embed", "softmax", "W_O"].map((label) => {
                text.textContent = label.replace("_", "");
                return pillWidth(label) - text.getBBox().width;
            });
        }"""
    )
    assert min(rooms) >= 4


def test_a_weight_is_dragged(reader: Reader, trace: Trace) -> None:
    page = reader.open(f"?open=decoder.2&at={CROSS}.weights&head=2&row=1&column=0")
    page.wait_for_selector(".change-panel")
    slider = page.locator(".change-panel .slider input")
    weight = float(trace[f"{CROSS}.weights"][0, 2, 1, 0])
    assert float(slider.input_value()) == pytest.approx(weight, abs=0.006)
    for share in (0.5, 1):  # the slider that is held stays while the page answers
        slider.fill(str(share))
        reader.until(f"decodeURIComponent(location.search).includes('column=0:to={share}')")
        reader.until(f"document.querySelector('#inspector [data-value]').dataset.value == {share}")
        assert page.evaluate("document.activeElement.type") == "range"


@pytest.mark.parametrize("reader", EVERYONE[:2], indirect=True, ids="-".join)
def test_one_token_is_patched_from_another_sentence(reader: Reader) -> None:
    page = reader.open("?at=encoder.output&row=1")
    page.wait_for_selector(".patch input")
    page.fill(".patch input", "我讨厌这个人")  # one token of a longer text
    page.click(".patch button")
    page.wait_for_selector(".word.changed")
    assert "hate" in reader.text(".words")
    assert "爱" in reader.text("#changes .change")
    page.wait_for_selector(".node.changed")  # drawn after the words
    reader.keep("patch")


def test_languages_change_and_a_link_leads_to_the_same_view(reader: Reader) -> None:
    page = reader.open(f"?open=decoder.2&at={CROSS}.scores&head=1")
    page.wait_for_selector("#inspector math")
    with page.expect_navigation():
        page.click("#language")
    page.wait_for_selector("#inspector math")
    assert "分数" in reader.text("#inspector h2")
    page.click("#inspector [data-export=python]")
    code = page.inner_text("#inspector .python")
    assert f'trace.get("{CROSS}.scores", head=1)' in code and 'model.trace("我爱你")' in code
    with page.expect_download() as download:
        page.click("#inspector [data-export=svg]")
    assert Path(download.value.path()).read_text(encoding="utf-8").startswith("<svg")
