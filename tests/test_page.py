"""The attention page in a real browser: right weights, and text is never markup."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from matplotlib import colormaps

from evaluation import page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason=f"install Chromium (Debian: apt install chromium): none of {BROWSERS}"
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "page.html"


def weights(*shape):
    values = np.random.default_rng(0).random(shape) ** 9  # some near 0, some near 1
    return values / values.sum(-1, keepdims=True)


def browse(path, kinds, script, *flags, address="", title="title"):
    """Write a page with a script, and return its result from the browser."""
    page.write(path, kinds, title)
    probe = f"const report = (() => {{ {script} }})();"
    probe += "document.body.append(Object.assign(document.createElement('pre'), "
    probe += "{id: 'report', textContent: JSON.stringify(report)}));"
    path.write_text(path.read_text("utf-8") + f"<script>{probe}</script>", "utf-8")
    usual = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"
    usual += " --disable-component-update --disable-sync --virtual-time-budget=1000 --dump-dom"
    profile = f"--user-data-dir={path.parent / 'profile'}"
    command = [BROWSER, *usual.split(), *flags, profile, f"{path.as_uri()}#{address}"]
    dom = subprocess.run(command, capture_output=True, timeout=120, check=True).stdout.decode()
    return json.loads(html.unescape(re.search('<pre id="report">(.*?)</pre>', dom)[1]))


# Numbers and colours of the keys after each action of a reader.
READER = """
const seen = [];
const look = () => seen.push([...document.querySelectorAll(".key")].map((key) => [
  Number(key.querySelector(".number").textContent),
  ...getComputedStyle(key).backgroundColor.match(/\\d+/g).map(Number),
]));
const words = document.querySelectorAll(".query");
// A window that has no focus yet, as a fresh one may be, keeps events of focus to itself.
const focus = (word) => { word.focus(); word.dispatchEvent(new FocusEvent("focus")); };
const press = (key) =>
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
look();                                                               // opened at an address
words[1].dispatchEvent(new PointerEvent("pointerenter")); look();     // points at the 2nd word
focus(words[4]); look();                                              // focuses the 5th
press("ArrowLeft"); look();                                           // the 4th
press("ArrowDown"); look();                                           // head 4
document.querySelectorAll("#layers input")[0].click(); look();        // layer 1
document.querySelectorAll("#maps input")[0].click(); look();          // mean of all heads
document.querySelectorAll("#kinds input")[0].click(); look();         // the other kind
document.body.focus(); press("ArrowRight"); look();                   // the 5th
return seen;
"""


@needs_browser
def test_every_way_to_select_a_word_shows_its_weights(path):
    own, cross = weights(2, 4, 6, 6), weights(3, 4, 5, 6)
    source, target = list("abcdef"), list("vwxyz")
    cross[1, 2, 3, 5] = -0.05  # of an edited attention
    kinds = {"self": (own, source, source), "cross": (cross, target, source)}
    seen = browse(path, kinds, READER, address="kind=2&layer=2&head=3&word=4")
    expected = [
        cross[1, 2, 3],
        cross[1, 2, 1],
        cross[1, 2, 4],
        cross[1, 2, 3],
        cross[1, 3, 3],
        cross[0, 3, 3],
        cross[0, :, 3].mean(axis=0),
        own[0, :, 3].mean(axis=0),
        own[0, :, 4].mean(axis=0),
    ]
    for shown, row in zip(seen, expected, strict=True):
        shown = np.array(shown)
        np.testing.assert_array_equal(shown[:, 0], np.rint(1000 * row) / 1000)
        colours = 255 * colormaps["Blues"](row)[:, :3]  # as in the figures
        np.testing.assert_allclose(shown[:, 1:], colours, atol=2)


@needs_browser
@pytest.mark.parametrize(
    ("kind", "predicted"), [("encoder self-attention", False), ("cross", True)]
)
def test_arrow_keys_work_at_once_and_rows_of_a_decoder_are_predictions(kind, predicted, path):
    kinds = {kind: (weights(1, 1, 2, 2), ["x", "y"], ["a", "b"])}
    script = """
        document.activeElement.dispatchEvent(
            new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
        return ["#looking", "#summary"].map((id) => document.querySelector(id).textContent);
    """
    heading, summary = browse(path, kinds, script)
    assert "Layer 1, mean" in summary  # at first, the last layer and all heads
    assert "“y”" in summary and ("predict" in heading) == ("predict" in summary) == predicted


@needs_browser
def test_text_is_never_markup(path):
    shouts = "document.title = 'run'"
    tokens = [
        f"</script><script>{shouts}</script>",
        f'<img src="x" onerror="{shouts}">',
        *["&lt;", "<!--<script>", "@TITLE@", "\u2028", "\\u003c", '"', "<s>"],
    ]
    name = f"<img src='x' onerror=\"{shouts}\">"
    title = f"</title></h1><script>{shouts}</script> @DATA@"
    script = """
        const texts = (what) => [...document.querySelectorAll(what)].map((e) => e.textContent);
        return [document.title, texts("h1"), texts("#kinds label"), texts(".query"),
                texts(".key .text"), document.querySelectorAll("img, script").length];
    """
    kinds = {name: (weights(1, 1, len(tokens), len(tokens)), tokens, tokens)}
    report = browse(path, kinds, script, address="word=2", title=title)
    # Three scripts: data and code of the page, and the report.
    assert report == [title, [title], [name], tokens, tokens, 3]


def test_the_page_has_no_addresses(path):
    page.write(path, {"self": (weights(1, 1, 1, 1), ["▁a"], ["▁a"])}, "title")
    text = path.read_text("utf-8")
    assert not re.search(r"//\w|url\(|@import|\b(src|href) *=", text)
