"""`python -m tests.parity`, see `parity`."""

import sys

from tests.parity import parity

sys.exit(parity.main(sys.argv[1:]))
