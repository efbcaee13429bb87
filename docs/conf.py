"""Builds the documentation: `python -m sphinx -W --keep-going -n docs docs/_build`, from the root of the repository.

The source folder is the repository, see `setup`, so that the same links work here and on a page that shows its files.
Pages that this folder lists as executed become notebooks; the code of all others is run by tests/test_readme.py.
"""

import hashlib
import os
import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS)]
# For this process, which imports what it documents, and for the kernels, which inherit it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["MATPLOTLIBRC"] = str(DOCS / "static" / "matplotlibrc")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

from keras_attn import __version__  # noqa: E402

project = "keras_attn"
author = "the authors of keras_attn"
copyright = author
release = version = __version__

root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "examples/**",
    "saved_models/**",
]
exclude_patterns = [
    "docs/_build",
    "docs/results",
    "keras_attn",
    "tests",
    "runs",
    "build",
    "dist",
    "*.egg-info",
    "**/.*",
    "**/__pycache__",
]
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "site_parts.docstrings",
    "site_parts.api",
    "site_parts.pages",
    "site_parts.navigation",
    "site_parts.files",
    "site_parts.llms",
]

html_theme = "furo"
html_title = "keras_attn"
html_favicon = "static/icon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
highlight_language = "none"
maximum_signature_line_length = 88
nitpick_ignore_regex = [
    # Of others, for which there is no inventory without a network.
    ("py:exc", r"(subprocess|tf)\..*"),
    ("py:class", r"keras\..*"),
    # Not public: what a task declares its export with.
    ("py:class", r"keras_attn\.tasks\.\w+\.\w+(Functions|Input|PageLabels)"),
]

# Notebooks. What a cell needs is kept small, so one that takes minutes hangs.
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 120
nb_execution_in_temp = True
nb_output_stderr = "remove"
nb_merge_streams = True

myst_enable_extensions = ["html_image"]
# The names that GitHub gives to headings.
myst_heading_anchors = 4
# A link that is finished already, see site_parts/pages.py.
myst_url_schemes = {"http": None, "https": None, "mailto": None, "site": {"url": "{{path}}#{{fragment}}"}}

autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Call arguments", "params_style")]


def setup(app):
    # Pages lie outside docs too (README.md, examples/serving), and every link is relative to the page that has it.
    app.srcdir = type(app.srcdir)(ROOT)
    # What a cell shows depends on the library too, so the outputs that are kept are those of its present code.
    app.config.nb_execution_cache_path = str(app.outdir.parent / ".jupyter_cache" / digest_of_library())


def digest_of_library():
    """A name for the present code of the library."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "keras_attn").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.relative_to(ROOT).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
