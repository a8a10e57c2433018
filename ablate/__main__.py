"""`python -m ablate`, where the command is not on the path."""

import sys

if __name__ == "__main__":
    sys.argv[0] = "ablate"  # before the command line looks whose process it is

    from ablate.cli import main

    main()
