"""What tests of the command line share."""

from tests.cli.conftest import call as call
