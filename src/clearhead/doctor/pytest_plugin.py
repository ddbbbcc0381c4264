"""pytest --doctor: every check of every model that pyproject.toml names is a test. PYTEST_DONT_REWRITE

Without --doctor nothing else is loaded.
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The one option."""
    about = "examine the models of [tool.clearhead.doctor] in pyproject.toml, a test for each check"
    parser.getgroup("clearhead").addoption("--doctor", action="store_true", help=about)


def pytest_configure(config: pytest.Config) -> None:
    """With --doctor, load the rest."""
    if config.getoption("doctor"):
        from clearhead.doctor.pytest_items import Doctor

        config.addinivalue_line("markers", "doctor: a check of the doctor, on a model of [tool.clearhead.doctor]")
        config.pluginmanager.register(Doctor.of(config), "clearhead-doctor-items")
