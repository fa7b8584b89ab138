"""Formulas as MathML, which browsers draw without a script or a network."""

from docutils import nodes
from latex2mathml.converter import convert


def register(app):
  """Adds the renderer `mathml` to a Sphinx application."""
  app.add_html_math_renderer("mathml", (_inline, None), (_display, None))


def _inline(translator, node):
  translator.body.append(convert(node.astext(), display="inline"))
  raise nodes.SkipNode


def _display(translator, node):
  formula = convert(node.astext(), display="block")
  translator.body.append(f'<div class="formula">{formula}</div>')
  raise nodes.SkipNode
