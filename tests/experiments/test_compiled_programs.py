"""The checks of compiled programs, and the lowering for CUDA, for which no device is needed."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from experiments.benchmarks import compilers as programs
from jdp.numerics import compensated

VECTOR = jax.ShapeDtypeStruct((8,), np.float32)


def lowered(function, *shapes, platform):
  return jax.jit(function).trace(*shapes).lower(lowering_platforms=(platform,)).as_text()


def printed(x):
  jax.debug.print("{}", x)
  return x


@pytest.mark.parametrize(
  ("planted", "name"),
  [
    (lambda x: jax.pure_callback(np.sin, VECTOR, x), "pure_callback"),
    (lambda x: io_callback(np.sin, VECTOR, x), "io_callback"),
    (printed, "debug_print"),
  ],
)
def test_a_planted_callback_is_found(planted, name):
  def looped(x):
    return jax.lax.fori_loop(0, 3, lambda i, y: jax.jit(planted)(y), x)

  assert programs.host_callbacks(jax.jit(looped).trace(VECTOR)) == [name]


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_float64_products_are_counted_and_sums_of_float64_are_none(platform):
  square = jax.ShapeDtypeStruct((8, 8), np.float32)

  def two(x):
    return compensated.product(x, x).value + compensated.product(x, x + 1).value

  def none(x):
    return compensated.sum_rows(x).value + x @ jnp.ones(8)

  assert programs.float64_products(lowered(two, square, platform=platform)) == 2
  text = lowered(none, square, platform=platform)
  assert programs.float64_products(text) == 0
  assert "f64" in text


def test_one_program_of_each_part_lowers_for_cuda():
  last = {program.part: program for program in programs.programs(programs.SMALL)}
  assert last["rounds"].chips == programs.CHIPS
  for program in last.values():
    row = programs.examined(program, jax.devices(), for_tpu=False)
    assert row["cuda"] == {"float64_products": 0}
    assert row["callbacks"] == []


def test_every_sampler_has_its_arguments():
  mesh = programs.federated.client_mesh(jax.devices()[:1])
  for program in programs.programs(programs.SMALL):
    if program.part == "samplers":
      function, arguments = program.make(mesh)
      sample, _ = jax.eval_shape(function, *arguments)
      assert 0 < len(sample.indices) < sample.population


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed")
def test_without_the_compiler_there_is_a_plain_reason():
  assert programs.topology() == "libtpu is not installed"


def test_the_memory_of_refused_programs_is_read():
  ran_out = "RESOURCE_EXHAUSTED: Ran out of memory "
  temporaries = (
    "on HBM, the total memory required for HLO temporaries (40.16G) exceeds available HBM"
  )
  assert programs.needed_memory(ran_out + temporaries) == 40.16 * 2**30
  used = "in memory space hbm. Used 20.50G of 15.75G hbm."
  assert programs.needed_memory(ran_out + used) == 20.5 * 2**30
  assert programs.needed_memory("UNIMPLEMENTED: 20.5G") is None
