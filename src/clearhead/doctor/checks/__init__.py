"""The checks, in the order in which they are made: what a failure would falsify comes after it.

A check registers itself where it is written, by `model_check`; every file in this folder is loaded for that.
"""

from clearhead.doctor.checks.base import load_all, model_check

load_all(__name__, __path__)
CHECKS = model_check.in_order()
