"""`python -m nnx_ppo.cli` is `nnx-ppo`."""

import sys

from nnx_ppo.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
