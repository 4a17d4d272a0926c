"""Django's own command line, with this project's settings."""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "yoco_platform.settings")
    execute_from_command_line(sys.argv)
