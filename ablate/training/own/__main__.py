"""`python -P -m ablate.training.own FOLDER OPTIONS`: a fresh interpreter that trains one run.

Used by training/own/work.py for `ablate sweep trainer=NAME`, and by `ablate doctor trainer=NAME`
(audit/doctor/resume_check.py).
"""

import json
import sys

from ablate.training.own.work import work_in_process

if __name__ == "__main__":
    sys.exit(work_in_process(sys.argv[1], json.loads(sys.argv[2])))
