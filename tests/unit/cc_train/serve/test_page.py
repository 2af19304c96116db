"""The page in a real browser: images in, sentence out, no error, and nothing sent away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cc_prep import datasets
from cc_train.pretrained import Captioner
from cc_train.serve.caption_service import CaptionService
from cc_train.serve.collection import Collection
from cc_train.serve.server import Server, make, shipped_examples
from tests.browser import Tab, tab
from tests.network_factory import Talkative

EXAMPLES = shipped_examples()
CAPTIONED = "$('#busy').hidden && !$('#result').hidden && $('#sentence').textContent"


def started(server: Server) -> Server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("collected")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, collected: Path) -> Iterator[Server]:
    waiting = tmp_path_factory.mktemp("waiting")
    for side in ("before", "after"):
        path = waiting / f"site7_{side}.jpg"
        path.write_bytes((EXAMPLES / f"scene6_{side}.jpg").read_bytes())
    http_server = make(
        "captioner-mini",
        host="127.0.0.1",
        port=0,
        examples=None,
        pairs=str(waiting),
        collect=str(collected),
        fetch=False,
        device="cpu",
    )
    with started(http_server) as one:
        yield one
        one.shutdown()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Iterator[Tab]:
    with tab(tmp_path_factory.mktemp("profile")) as one:
        one.open(server.url)
        one.wait_for("document.querySelectorAll('#examples img').length")
        yield one


@pytest.fixture(autouse=True)
def _quiet(page: Tab, request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test: no error in the console, and no request to anybody else."""
    page.complaints.clear()
    yield
    page.run("1")  # so that all events are read
    # The browser itself says, whenever it comes to it, that an answer was an error.
    assert [line for line in page.complaints if "status of 400" not in line] == []
    own = ("http://127.0.0.1:", "blob:http://127.0.0.1:", "data:", "about:")
    assert [url for url in page.requests if not url.startswith(own)] == []
    assert len(page.requests) > 5


def test_chosen_images_get_a_sentence(page: Tab, server: Server) -> None:
    files = [EXAMPLES / f"scene1_{side}.jpg" for side in ("before", "after")]
    for side, file in zip(("before", "after"), files, strict=True):
        page.choose(f".drop[data-side={side}] input", file)
    expected = server.service.captioner(*files, beams=5)
    assert page.wait_for(CAPTIONED) == server.service.captioner(*files).text
    beams = page.run(
        "[...document.querySelectorAll('#ranked td:first-child')].map(e => e.innerText)"
    )
    assert beams == [text for text, _ in expected.beams]
    assert "right with a chance of 9" in page.run("$('#confidence').innerText")
    assert page.run("$('#looked').hidden && $('#masked').hidden && $('#imagined').hidden")


def test_dropped_images_get_a_sentence(page: Tab, server: Server) -> None:
    """Two files in one drop, the later one first: their names say which is before."""
    page.run("""(async () => {
      const both = new DataTransfer();
      for (const side of ["after", "before"]) {
        const data = await (await fetch(`/examples/5/${side}`)).blob();
        both.items.add(new File([data], `x_${side}.jpg`));
      }
      $("#sentence").textContent = "";
      const event = new DragEvent("drop", {dataTransfer: both, bubbles: true, cancelable: true});
      $(".drop").dispatchEvent(event);
    })()""")
    assert page.wait_for(CAPTIONED) == "nothing changed"
    shown = page.run("[...document.querySelectorAll('.drop img')].map(image => image.alt)")
    assert shown == ["before: x_before.jpg", "after: x_after.jpg"]


def test_an_example_at_a_click_and_swapped(page: Tab) -> None:
    """Scene 4: an object appeared; swapped, it disappeared."""
    page.run("$('#sentence').textContent = ''")
    page.run("document.querySelectorAll('#examples button')[3].click()")
    assert page.wait_for(CAPTIONED).endswith("appeared")
    page.run("$('#sentence').textContent = ''; $('#swap').click()")
    assert page.wait_for(CAPTIONED).endswith("disappeared")


def test_captions_are_collected(page: Tab, collected: Path) -> None:
    """A pair that waits, the captioner's proposal and a sentence of one's own, saved."""
    page.run("$('#tab-collect').click(); $('#sentence').textContent = ''")
    # The name comes with the images: else a quick hand saves the former pair under it.
    assert page.run("$('#next').click(), $('#id').value") != "site7"
    assert page.wait_for(CAPTIONED) == "nothing changed"
    assert page.wait_for("$('#id').value") == "site7"
    page.run("$('#propose').click(); $('#kind').value = 'no_change'")
    # A second click while the first one is under way does nothing.
    page.run("$('#captions').value += '\\nall is the same'; $('#save').click(); $('#save').click()")
    assert page.run("$('#save').disabled")
    assert page.wait_for("$('#saved').textContent") == "site7 is saved."
    assert page.wait_for("!$('#save').disabled && $('#error').hidden")
    assert page.wait_for("$('#collected h2').textContent === '1 collected'")
    assert page.run("$('#queue').hidden && $('#captions').value === ''")
    for letter, side in (("A", "before"), ("B", "after")):
        saved = collected / f"images/train/{letter}/site7.jpg"
        assert saved.read_bytes() == (EXAMPLES / f"scene6_{side}.jpg").read_bytes()
    for name in ("own", "levir"):
        [pair] = datasets.open(name, root=str(collected))
        assert pair.captions == ("nothing changed", "all is the same")
        assert pair.record.kind == "no_change"


def test_a_collected_pair_is_edited(page: Tab, server: Server) -> None:
    """Keeps away: a pair of which an edit makes a second one; a new pair that replaces another."""
    collection = server.collection
    assert collection is not None
    page.run("$('#tab-collect').click()")
    page.run("document.querySelector('#collected tbody button').click()")
    assert page.wait_for("!$('#edited').hidden && $('#edited span').textContent") == (
        "Save replaces the pair site7."
    )
    assert page.wait_for("$('#busy').hidden")
    page.run("$('#id').value = 'site8'; $('#captions').value = 'new'; $('#save').click()")
    assert page.wait_for("$('#saved').textContent") == "site8 is saved."
    assert page.wait_for("!$('#save').disabled && $('#edited').hidden")
    assert [(row.id, row.captions) for row in collection.rows()] == [("site8", ("new",))]
    # Both images of another pair end an edit, so that the name is refused.
    page.run("document.querySelector('#collected tbody button').click()")
    assert page.wait_for("!$('#edited').hidden && $('#busy').hidden")
    page.run("document.querySelectorAll('#examples button')[1].click()")
    assert page.wait_for("$('#edited').hidden && $('#busy').hidden")
    page.run("$('#id').value = 'site8'; $('#captions').value = 'x'; $('#save').click()")
    error = page.wait_for("!$('#save').disabled && !$('#error').hidden && $('#error').textContent")
    assert error == "another pair is called 'site8'. Give another name, or edit it"
    assert [(row.id, row.captions) for row in collection.rows()] == [("site8", ("new",))]


def test_errors_are_shown_in_a_line(page: Tab, tmp_path: Path) -> None:
    page.run("$('#tab-caption').click()")
    (tmp_path / "clip.mp4").write_bytes(b"no film")
    page.choose(".drop[data-side=after] input", tmp_path / "clip.mp4")
    # The error of the page before is shown until then.
    error = page.wait_for("/^clip/.test($('#error').textContent) && $('#error').textContent")
    assert error == "clip.mp4: is a video. Give an image, such as a frame of it"
    assert page.run("$('#result').hidden")


def test_heat_mask_and_imagined_frames(page: Tab) -> None:
    """The page of a captioner with all optional outputs."""
    pairs = [(str(EXAMPLES / "scene1_before.jpg"), str(EXAMPLES / "scene1_after.jpg"))]
    with started(
        Server(CaptionService(Captioner(Talkative(), Path()), "talkative"), pairs)
    ) as server:
        page.open(server.url)
        page.wait_for("document.querySelectorAll('#examples img').length")
        page.run("document.querySelector('#examples button').click()")
        assert page.wait_for(CAPTIONED) == "the cube moved"
        words = "[...document.querySelectorAll('.words span')]"
        assert page.run(f"{words}.map(word => word.textContent)") == [
            "all words", "the", "cube", "moved",
        ]  # fmt: skip
        heat = "document.querySelector('#looked .images img').src"
        all_words = page.run(heat)
        page.run(f"{words}[2].click()")
        assert page.run(heat) != all_words
        drawn = "[...document.querySelectorAll('#result img')].every(one => one.naturalWidth > 0)"
        assert page.wait_for(drawn)
        assert page.run("document.querySelectorAll('.strip img').length") == 3
        assert page.run("document.querySelectorAll('#masked img').length") == 4
        assert page.run("$('#masked .note').innerText") == (
            "class 1: 6.3 % of the imageclass 2: 3.1 % of the image"
        )
        colour = page.run("getComputedStyle($('#masked .note i:first-child')).backgroundColor")
        assert colour == "rgb(255, 40, 0)"
        assert page.run("regions([])") == ["Nowhere: the mask is empty."]
        page.run("$('#tab-collect').click()")
        assert "--collect DIR" in page.run("$('#collect').innerText")
        server.shutdown()


def scene(number: int) -> tuple[str, str]:
    return str(EXAMPLES / f"scene{number}_before.jpg"), str(EXAMPLES / f"scene{number}_after.jpg")


@pytest.fixture
def queued(tmp_path: Path, page: Tab) -> Iterator[Collection]:
    """The page of pairs that wait, of which the first one is gone, and one that is collected."""
    collection = Collection(tmp_path / "own")
    images = [Path(file).read_bytes() for file in scene(4)]
    collection.put("old", *images, ["x"], "test", "no_change")
    pairs = [(str(tmp_path / "gone_before.png"), str(tmp_path / "gone_after.png")), scene(1)]
    service = CaptionService(Captioner(Talkative(), Path()), "talkative")
    with started(Server(service, [], [*pairs, scene(2)], collection)) as server:
        page.open(server.url)
        page.wait_for("document.querySelectorAll('#collected tbody button').length === 2")
        page.run("$('#tab-collect').click()")
        yield collection
        page.open("about:blank")  # else it may still ask for an image when nobody answers
        server.shutdown()


def test_a_pair_that_cannot_be_read_or_is_renamed_does_not_come_again(
    page: Tab, queued: Collection
) -> None:
    """Keeps away: a queue whose first pair hides all others."""
    page.run("$('#next').click()")
    page.wait_for("!$('#error').hidden && $('#error').textContent.includes('gone_before.png')")
    page.run("$('#next').click()")
    assert page.wait_for("$('#busy').hidden && $('#id').value") == "scene1"
    page.run("$('#id').value = 'mine'; $('#captions').value = 'new'; $('#save').click()")
    assert page.wait_for("$('#saved').textContent") == "mine is saved."
    page.wait_for("$('#queue span').textContent === '2 of 4 have captions'")
    assert [row.id for row in queued.rows()] == ["old", "mine"]
    for expected in ("scene2", None, "scene2"):
        page.run("$('#id').value = ''; $('#error').hidden = true; $('#next').click()")
        if expected is None:
            page.wait_for("!$('#error').hidden")
        else:
            assert page.wait_for("$('#busy').hidden && $('#id').value") == expected


def press(page: Tab, key: str, code: str, modifiers: int = 0) -> None:
    """A key as a hand presses it; Alt is 1 and Ctrl 2 of the modifiers."""
    for kind in ("rawKeyDown", "keyUp"):
        page.send("Input.dispatchKeyEvent", type=kind, key=key, code=code, modifiers=modifiers)


def test_pairs_are_collected_by_keys_alone(page: Tab, queued: Collection) -> None:
    """Keeps away: two clicks a pair for 200 pairs, and a pair that is left though its form is
    refused."""
    for _ in range(2):
        page.run("$('#error').hidden = true; $('#next').click()")
        page.wait_for("$('#busy').hidden && (!$('#error').hidden || $('#id').value === 'scene1')")
    page.run("document.activeElement.blur()")
    press(page, "Enter", "Enter", 2)  # without captions it is refused, and stays
    assert page.run("$('#id').value") == "scene1"
    press(page, "2", "Digit2", 1)
    assert page.run("[$('#kind').value, $('#captions').value]") == ["no_change", "nothing changed"]
    press(page, "Enter", "Enter", 2)
    assert page.wait_for("$('#busy').hidden && $('#id').value === 'scene2' && $('#kind').value")
    page.wait_for("$('#queue span').textContent === '2 of 4 have captions'")
    assert page.run("[$('#kind').value, $('#captions').value]") == ["change", ""]
    press(page, "3", "Digit3", 1)
    assert page.run("$('#captions').value") == page.run("$('#sentence').textContent") != ""
    [_, row] = queued.rows()
    assert (row.id, row.kind, row.captions) == ("scene1", "no_change", ("nothing changed",))


def test_two_images_are_compared(page: Tab, queued: Collection) -> None:
    """Keeps away: a small change that nobody finds in two images beside each other."""
    page.run("$('#tab-caption').click(); document.activeElement.blur()")
    assert page.run("$('#view').hidden")
    page.run("load('/queue/1', 'scene1', () => {})")
    page.wait_for("$('#busy').hidden && !$('#view').hidden")
    place = "JSON.stringify(document.querySelector('.drop[data-side={}]').getBoundingClientRect())"
    assert page.run(place.format("before")) != page.run(place.format("after"))
    press(page, "b", "KeyB")
    assert page.run(place.format("before")) == page.run(place.format("after"))
    hidden = "getComputedStyle(document.querySelector('.drop[data-side=before]')).visibility"
    for state in ("hidden", "visible"):
        assert page.wait_for(f"{hidden} === '{state}'")
    press(page, "o", "KeyO")
    page.run("$('#mix input').value = 20; $('#mix input').oninput({target: $('#mix input')})")
    mixed = "getComputedStyle(document.querySelector('.drop[data-side=after]')).opacity"
    assert page.run(mixed) == "0.2"
    press(page, "o", "KeyO")
    page.run("$('#zoom').value = '4'; $('#zoom').onchange()")
    picture = "document.querySelector('.drop[data-side=after] img')"
    assert page.run(f"new DOMMatrix(getComputedStyle({picture}).transform).a") == 4
    page.run("$('#zoom').value = '1'; $('#zoom').onchange()")
    assert page.run("$('#pair').classList.contains('looking')") is False


def test_split_and_kind_of_an_edited_pair_do_not_stay(page: Tab, queued: Collection) -> None:
    """Keeps away: a changed pair that goes into `test` as unchanged, since one there was edited."""
    page.run("$('#next').click()")  # the one that is gone
    page.wait_for("!$('#error').hidden")
    edit = "document.querySelector('#collected tbody button').click()"
    state = "[$('#split').value, $('#kind').value, $('#captions').value]"
    page.run(f"$('#split').value = 'val'; {edit}")
    page.wait_for("!$('#edited').hidden && $('#busy').hidden")
    assert page.run(state) == ["test", "no_change", "x"]
    page.run("$('#save').click()")
    page.wait_for("$('#saved').textContent && !$('#save').disabled")
    assert page.run(state) == ["val", "change", ""]
    # The same where the edit is given up: another pair is shown, or it is saved as a new one.
    for end in ("", "$('#edited button').click()"):
        page.run(edit)
        page.wait_for("!$('#edited').hidden && $('#busy').hidden")
        page.run(f"{end}; $('#id').value = ''; $('#error').hidden = true; $('#next').click()")
        page.wait_for("$('#id').value.startsWith('scene') && $('#busy').hidden")
        assert page.run(state) == ["val", "change", ""]
    assert [(row.id, row.split, row.kind) for row in queued.rows()] == [
        ("old", "test", "no_change")
    ]


# From now on a save takes until `go()`.
SLOW = """
var go = null, ask_at_once = ask;
ask = async (url, content) => {
  if (url === "/pairs" && content) await new Promise((done) => { go = done; });
  return ask_at_once(url, content);
};
null
"""
BOTH_DROPPED = """(async () => {
  const files = [];
  for (const side of SIDES) files.push(await fetched(`/queue/2/${side}`, `y_${side}.jpg`));
  await take(files);
})()"""


def test_the_next_pair_comes_after_a_slow_save(page: Tab, queued: Collection) -> None:
    """Keeps away: a pair that was shown during a save, and loses its name, its captions and its
    turn when that ends; captions that are lost, since the save of them fails only then."""
    for _ in range(2):  # the first one is gone
        page.run("$('#next').click()")
        page.wait_for("!$('#error').hidden || ($('#busy').hidden && $('#id').value)")
    page.wait_for("$('#id').value === 'scene1' && $('#busy').hidden")
    page.run(SLOW)
    page.run("$('#id').value = 'old'; $('#captions').value = 'one'")
    page.run("$('#save').click(); $('#next').click()")
    page.wait_for("go")
    page.run("go(); go = null")
    page.wait_for("!$('#save').disabled && $('#error').textContent.includes('another pair')")
    assert page.run("$('#captions').value") == "one"
    page.run("$('#id').value = 'mine'; $('#save').click(); $('#next').click()")
    page.wait_for("go")
    page.run("go(); go = null")
    page.wait_for("$('#id').value === 'scene2' && $('#busy').hidden")
    page.run("$('#captions').value = 'two'; $('#save').click()")
    page.wait_for("go")
    page.run("go()")
    assert page.wait_for("$('#saved').textContent") == "scene2 is saved."
    page.wait_for("$('#queue span').textContent === '3 of 4 have captions'")
    assert [(row.id, row.captions) for row in queued.rows()][1:] == [
        ("mine", ("one",)), ("scene2", ("two",)),
    ]  # fmt: skip


def test_what_is_typed_for_dropped_images_stays(page: Tab, queued: Collection) -> None:
    """Keeps away: captions that are cleared as those of an edited pair, which they are not."""
    page.run("document.querySelector('#collected tbody button').click()")
    page.wait_for("!$('#edited').hidden && $('#busy').hidden")
    page.run("$('#edited button').click(); $('#captions').value = 'typed'")
    page.run(BOTH_DROPPED)
    page.wait_for("$('#id').value === 'y' && $('#busy').hidden")
    state = "[$('#split').value, $('#kind').value, $('#captions').value]"
    assert page.run(state) == ["train", "change", "typed"]
    page.run(SLOW)
    page.run("$('#save').click()")
    page.wait_for("go")
    page.run("$('#id').value = ''; $('#captions').value = 'of the next'")
    page.run(BOTH_DROPPED)
    page.wait_for("$('#id').value === 'y' && $('#busy').hidden")
    page.run("go()")
    page.wait_for("$('#saved').textContent === 'y is saved.' && !$('#save').disabled")
    assert page.run("$('#captions').value") == "of the next"
    assert [row.captions for row in queued.rows()] == [("x",), ("typed",)]


@pytest.mark.parametrize(
    ("is_stored", "left"), [(True, ["change", ""]), (False, ["no_change", "same"])]
)
def test_dropped_images_do_not_get_the_captions_of_a_pair_under_way(
    page: Tab, queued: Collection, is_stored: bool, left: list[str]
) -> None:
    """Keeps away: a pair with the sentence of the one before, which was being saved when its images
    were dropped; a sentence that is gone although it could not be stored."""
    page.run(BOTH_DROPPED)
    page.wait_for("$('#id').value === 'y' && $('#busy').hidden")
    page.run(SLOW)
    page.run("$('#captions').value = 'same'; $('#kind').value = 'no_change'")
    page.run(f"$('#id').value = '{'mine' if is_stored else 'old'}'; $('#save').click()")
    page.wait_for("go")
    page.run(BOTH_DROPPED)
    page.wait_for("$('#busy').hidden")
    page.run("go()")
    page.wait_for("!$('#save').disabled")
    assert page.run("[$('#kind').value, $('#captions').value]") == left


def test_captions_of_a_refused_save_stay(page: Tab, queued: Collection) -> None:
    """Keeps away: captions that are taken for stored ones, and go with the next images."""
    page.run("document.querySelector('#collected tbody button').click()")
    page.wait_for("!$('#edited').hidden && $('#busy').hidden")
    page.run("$('#edited button').click(); $('#captions').value = 'typed'; $('#save').click()")
    page.wait_for("!$('#save').disabled && $('#error').textContent.includes('another pair')")
    page.run(BOTH_DROPPED)
    page.wait_for("$('#busy').hidden && pair.before.name === 'y_before.jpg'")
    assert page.run("$('#captions').value") == "typed"


def test_a_proposal_waits_for_its_caption(page: Tab, queued: Collection) -> None:
    """Keeps away: a click that does nothing while a pair is captioned, a second one that adds the
    sentence again, and one that comes with a later pair where there was no caption."""
    page.run("$('#next').click()")  # the first one is gone
    page.wait_for("$('#busy').hidden && !$('#error').hidden")
    page.run("""var told = null;
    $('#next').click();
    setTimeout(() => {
      $('#propose').click();
      $('#propose').click();
      told = $('#saved').textContent;
    })""")
    assert page.wait_for("told") == "captioning …"
    said = page.wait_for("$('#busy').hidden && $('#captions').value")
    assert said == page.run("$('#sentence').textContent")
    assert page.run("$('#propose').click(), $('#captions').value") == said
    assert page.run("$('#saved').textContent") == ""
    page.run("load('/queue/0', 'gone', () => {}).catch(fail); $('#propose').click()")
    page.wait_for("$('#busy').hidden && !$('#error').hidden")
    page.run("$('#captions').value = ''; caption()")
    page.wait_for("$('#busy').hidden && $('#error').hidden")
    assert page.run("$('#captions').value") == ""


def test_a_doubt_is_shown_and_not_proposed(page: Tab, queued: Collection) -> None:
    """Keeps away: "not sure: …" as a caption of the data set."""
    doubted = (
        "{caption: 'not sure: why', raw_caption: 'a cube moved', confidence: 0.01, words: [], "
        "mask: null, imagined: [], beams: []}"
    )
    page.run(f"$('#captions').value = ''; result({doubted}); $('#propose').click()")
    assert page.run("$('#sentence').textContent") == "not sure: why"
    assert page.run("$('#raw').hidden || $('#raw').textContent") == "Its own sentence: a cube moved"
    assert page.run("$('#captions').value") == ""
    assert "is not sure (1 %)" in page.run("$('#error').textContent")


def test_an_empty_caption_is_not_proposed(page: Tab, queued: Collection) -> None:
    """Keeps away: "(nothing)" as a caption of the data set."""
    empty = "{caption: '', confidence: null, words: [], mask: null, imagined: [], beams: []}"
    page.run(f"$('#captions').value = ''; result({empty}); $('#propose').click()")
    assert page.run("$('#captions').value") == ""
    assert page.run("$('#error').textContent") == "The captioner says nothing of this pair."
