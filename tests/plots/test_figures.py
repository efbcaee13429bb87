"""Pictures of attention: what is drawn, what is written on it, and what is refused."""

import pickle
import subprocess
import sys
import xml.etree.ElementTree
from itertools import pairwise

import numpy as np
import pytest

from keras_attn.plots import attention_grid, figures, plot_attention, plot_learning_curves

SOURCE = ["▁der", "▁müde", "▁garçon", "!", "</s>"]
TARGET = ["▁the", "▁tired", "▁boy"]


def make_scores(*shape):
    logits = np.random.default_rng(0).normal(size=shape)
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


def maps(figure):
    """The axes that show a map, without the colour bar."""
    return [axes for axes in figure.axes if axes.images]


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def png_size(path):
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(header[16:20]), int.from_bytes(header[20:24])


def test_one_map_shows_the_scores_with_their_labels():
    scores = make_scores(3, 5)
    figure = plot_attention(scores, SOURCE, TARGET, title="layer $1")
    (panel,) = maps(figure)
    np.testing.assert_allclose(panel.images[0].get_array(), scores, rtol=1e-6)
    assert labels(panel.xaxis) == SOURCE
    assert labels(panel.yaxis) == TARGET
    assert panel.xaxis.get_tick_params()["labeltop"]
    assert not panel.xaxis.get_tick_params()["labelbottom"]
    assert figure.get_suptitle() == "layer $1"


def test_the_first_row_is_on_top():
    (panel,) = maps(plot_attention(make_scores(3, 5), SOURCE, TARGET))
    bottom, top = panel.get_ylim()
    assert top < bottom


def test_heads_are_panels_that_share_one_colour_scale():
    scores = make_scores(7, 3, 5)
    figure = plot_attention(scores, SOURCE, TARGET)
    panels = maps(figure)
    assert len(panels) == 7
    assert len(figure.axes) == 8
    for head, panel in enumerate(panels):
        np.testing.assert_allclose(panel.images[0].get_array(), scores[head], rtol=1e-6)
        assert panel.images[0].get_clim() == (0, 1)
        assert panel.get_xlabel() == f"head {head}"
        assert panel.xaxis.get_tick_params()["labeltop"] == (head < 4)
        assert panel.yaxis.get_tick_params()["labelleft"] == (head in (0, 4))
    assert figure.axes[-1].get_ylim() == (0, 1)


def test_rows_of_zeros_and_rounded_ones_are_scores():
    scores = np.array([[0, 0, 0, 0, 0], [1.002, 0, 0, 0, 0], [0, 0, 0, 0, 1]])
    assert len(maps(plot_attention(scores, SOURCE, TARGET))) == 1


@pytest.mark.parametrize("shape", [(5, 3), (3, 4), (2, 5, 3), (5,), (2, 2, 3, 5), (0, 3, 5)])
def test_scores_that_do_not_match_the_labels_are_refused(shape):
    with pytest.raises(
        ValueError, match=r"`attention_scores` must have shape \(T, S\) or \(N, T, S\)"
    ) as error:
        plot_attention(np.zeros(shape), SOURCE, TARGET)
    assert str(error.value).endswith(f"Received: shape={shape}, T=3, S=5.")


def test_no_tokens_are_refused():
    with pytest.raises(ValueError, match=r"Received: shape=\(3, 0\), T=3, S=0"):
        plot_attention(np.zeros((3, 0)), [], TARGET)


@pytest.mark.parametrize("value", [-0.1, 1.1, np.nan, np.inf])
def test_what_is_no_probability_is_refused(value):
    scores = make_scores(3, 5)
    scores[1, 2] = value
    with pytest.raises(ValueError, match=r"`attention_scores` must be probabilities in \[0, 1\]"):
        plot_attention(scores, SOURCE, TARGET)


def test_png_is_written_to_a_new_folder(tmp_path):
    path = tmp_path / "new" / "map.png"
    figure = plot_attention(make_scores(3, 5), SOURCE, TARGET, path=path)
    assert png_size(path) == tuple(np.floor(figure.get_size_inches() * 150).astype(int))


def test_more_tokens_get_more_room(tmp_path):
    sizes = []
    for length in (11, 37):
        path = tmp_path / f"{length}.png"
        plot_attention(make_scores(length, length), ["Straße"] * length, ["Hund"] * length, path=str(path))
        sizes.append(np.array(png_size(path)))
    assert np.all(sizes[1] - sizes[0] > 26 * 30)


def test_labels_do_not_overlap():
    length = 37
    figure = plot_attention(make_scores(length, length), list("é" * length), ["überquerte"] * length)
    figure.draw_without_rendering()
    (panel,) = maps(figure)
    rows = [label.get_window_extent() for label in panel.get_yticklabels()]
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(rows))
    columns = [label.get_window_extent() for label in panel.get_xticklabels()]
    assert all(left.x1 <= right.x0 for left, right in pairwise(columns))


@pytest.mark.parametrize("num_heads", [1, 5])
def test_words_above_the_map_slant_away_from_each_other(num_heads):
    source, target = ["▁überquerte"] * 11, ["▁Straße"] * 7
    figure = plot_attention(make_scores(num_heads, 7, 11), source, target)
    figure.draw_without_rendering()
    for panel in maps(figure)[:4]:
        above = panel.get_xticklabels()
        assert all(label.get_visible() and label.get_rotation() == 50 for label in above)
        # Parallel lines of text: what parts them is the step to the right times the sine of the slant.
        (left, _), (right, _) = (label.get_transform().transform((x, 0)) for x, label in enumerate(above[:2]))
        height = above[0].get_fontsize() / 72 * figure.dpi
        assert (right - left) * np.sin(np.deg2rad(50)) > height


def test_svg_holds_every_label_of_odd_tokens(tmp_path):
    source = ["$x^2$", "\n", "\0", "שלום", "<0x0A>"]
    path = tmp_path / "map.svg"
    figure = plot_attention(make_scores(3, 5), source, TARGET, title="$", path=path)
    assert labels(maps(figure)[0].xaxis) == ["$x^2$", "\\n", "\\x00", "שלום", "<0x0A>"]
    assert xml.etree.ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize("name", ["map", "map.txt"])
def test_an_unknown_file_type_is_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(
        ValueError, match=r"`path` must end in one of \('.png', '.svg', '.pdf'\). Received: path="
    ):
        plot_attention(make_scores(3, 5), SOURCE, TARGET, path=tmp_path / "new" / name)
    assert not (tmp_path / "new").exists()


def test_a_missing_matplotlib_is_named_with_the_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'need matplotlib. Install it: pip install "keras_attn\[plots\]"'):
        plot_attention(make_scores(3, 5), SOURCE, TARGET)


def test_pyplot_is_never_loaded_and_matplotlib_only_when_it_draws():
    # The file alone: keras itself loads pyplot where it finds it.
    code = """
import runpy, sys
import numpy as np
plot_attention = runpy.run_path(sys.argv[1])["plot_attention"]
assert "matplotlib" not in sys.modules
plot_attention(np.ones((1, 1)), ["a"], ["b"])
assert "matplotlib" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    command = [sys.executable, "-c", code, figures.__file__]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr


def test_a_notebook_asks_the_figure_itself_for_its_picture(tmp_path):
    formatters = pytest.importorskip("IPython.core.formatters")
    file = tmp_path / "a.csv"
    file.write_text("epoch,val_bleu\n1,12.5\n", encoding="utf-8")
    # A glyph that matplotlib's font lacks must not warn.
    for figure in (
        plot_attention(make_scores(2, 3), ["▁der", "日", "x"], ["a", "b"]),
        plot_learning_curves({"a": file}),
    ):
        shell = formatters.DisplayFormatter()
        shell.active_types = list(shell.formatters)
        shown, _ = shell.format(figure)
        assert sorted(shown) == ["image/png", "text/plain"]
        assert shown["image/png"][:8] == b"\x89PNG\r\n\x1a\n"
        copy = pickle.loads(pickle.dumps(figure))
        assert copy._repr_png_() == figure._repr_png_()


@pytest.mark.extended
@pytest.mark.parametrize("before", ["", "import matplotlib.pyplot", "%matplotlib inline"])
def test_a_cell_of_a_fresh_kernel_shows_the_figure_once(before):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    cell = f"""{before}
import runpy
plot_attention = runpy.run_path({figures.__file__!r})["plot_attention"]
plot_attention([[0.9, 0.1], [0.2, 0.8]], ["der", "Hund"], ["the", "dog"])"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    nbclient.NotebookClient(notebook).execute()
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "execute_result"
    assert sorted(output.data) == ["image/png", "text/plain"]


def test_a_grid_has_a_row_a_layer_and_a_column_a_head():
    scores = np.zeros((2, 3, 5, 7), "float32")
    scores[1, 2, 4, 0] = 1.0
    picture = attention_grid(scores, scale=4)
    assert picture.shape == (2 * (5 * 4 + 4), 3 * (7 * 4 + 4), 3)
    assert picture.dtype == "uint8"
    dark = np.argwhere((picture == figures._DARK).all(axis=-1))
    # Layer 1 begins at dot 24, head 2 at dot 64; inside come a gap of 2, then four scores above, and none before it.
    np.testing.assert_array_equal(dark.min(axis=0), [24 + 2 + 16, 64 + 2])
    np.testing.assert_array_equal(dark.max(axis=0), [24 + 2 + 19, 64 + 2 + 3])
    with pytest.raises(ValueError, match=r"shape \(L, N, T, S\)"):
        attention_grid(scores[0])
    with pytest.raises(ValueError, match="numbers from 0 to 2"):
        attention_grid(2 * scores)


def test_learning_curves_are_the_columns_of_their_files(tmp_path):
    (tmp_path / "a.csv").write_text(
        "epoch,loss,val_bleu\n1,3.0,12.5\n2,2.5,21.0\n4,2.0,23.0\n", encoding="utf-8"
    )
    (tmp_path / "b.csv").write_text("epoch,loss,val_bleu\n1,4.0,2.5\n", encoding="utf-8")
    files = {"first": tmp_path / "a.csv", "second": str(tmp_path / "b.csv")}
    figure = plot_learning_curves(files, title="Two runs", path=tmp_path / "new" / "curves.png")
    [panel] = figure.axes
    assert {line.get_label(): line.get_xydata().tolist() for line in panel.lines} == {
        "first": [[1, 12.5], [2, 21.0], [4, 23.0]],
        "second": [[1, 2.5]],
    }
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("epoch", "val_bleu")
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["first", "second"]
    assert png_size(tmp_path / "new" / "curves.png") == (1050, 600)
    [panel] = plot_learning_curves(files, column="loss").axes
    assert panel.lines[0].get_ydata().tolist() == [3.0, 2.5, 2.0]


def test_learning_curves_without_the_column_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("epoch,loss\n1,3.0\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"a\.csv has no column 'val_bleu'. It has: epoch, loss\."):
        plot_learning_curves({"first": tmp_path / "a.csv"})
    with pytest.raises(ValueError, match="`path` must end in one of"):
        plot_learning_curves({}, path="curves.bmp")
