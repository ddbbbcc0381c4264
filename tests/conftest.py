"""What all tests share."""

from hypothesis import settings

settings.register_profile("clearhead", deadline=None)  # a busy machine is not a fault
settings.load_profile("clearhead")
