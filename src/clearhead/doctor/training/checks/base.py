"""How a check of a training is registered."""

from clearhead.doctor.checks.base import Registry
from clearhead.doctor.training.recording import Recording

training_check = Registry[Recording]()
