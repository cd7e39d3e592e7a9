"""Makes the environments and networks of ``training_cases`` importable in these tests."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
