"""Settings of the documentation's site: `python -m sphinx -W -b html docs OUT`.

What the pages take from the code (API reference, matrices, the picture of the imports, the
gallery) is written to `docs/generated/` when a build begins. Nothing is fetched.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from docs.site import formulas, links, pages

project = "jdp"
author = "the jdp authors"
html_title = "jdp"
html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_copyright = False

extensions = ["myst_nb", "sphinx_copybutton"]
exclude_patterns = ["site", "generated/parts"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_disable_syntax = ["html_inline", "html_block"]  # `<v, u>` is an inner product
myst_heading_anchors = 4
myst_links_external_new_tab = False
nb_execution_mode = "off"  # the outputs are stored; .ci/notebooks.py executes them
nb_merge_streams = True

nitpicky = True
# Annotations of other packages, of type variables and of private names have no page here.
nitpick_ignore_regex = [("py:(class|data|obj)", r"(?!jdp\.).*")]
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
suppress_warnings = ["ref.python"]  # an annotation that names a class of two packages
html_math_renderer = "mathml"


def setup(app):
  """Connects what writes pages, and what makes links and formulas of their text."""
  formulas.register(app)
  app.connect("builder-inited", lambda app: pages.write_all())
  app.connect("source-read", links.rewrite)
