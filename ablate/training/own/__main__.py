"""`python -P -m ablate.training.own FOLDER OPTIONS`: a fresh interpreter that trains one run."""

import json
import sys

from ablate.training.own.work import here

if __name__ == "__main__":
    sys.exit(here(sys.argv[1], json.loads(sys.argv[2])))
