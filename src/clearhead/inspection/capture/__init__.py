"""The one capture: what every module computes, what stands between modules, and what is put in its place."""
