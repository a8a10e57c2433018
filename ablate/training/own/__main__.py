"""`python -P -m ablate.training.own FOLDER OPTIONS`: a fresh interpreter that trains one run."""

import json
import sys

from ablate.training.own.work import work_in_process

if __name__ == "__main__":
    sys.exit(work_in_process(sys.argv[1], json.loads(sys.argv[2])))
