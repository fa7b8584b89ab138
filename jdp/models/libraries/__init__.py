"""Models of other libraries as `jdp.models.Model`."""
