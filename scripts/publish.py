"""Publish a finished folder on the Hub: everything is looked at first, then it goes up in one commit; private untold.

The token is that of `hf auth login`, or of HF_TOKEN.

$ python scripts/publish.py runs/quickstart yourname/reviews --dry-run
$ python scripts/publish.py runs/quickstart yourname/reviews --public --revision trial
"""

import sys

from hf_roformer.hub_upload import publish, read_request


def main(command_line: list[str]) -> None:
    request = read_request(command_line)
    outcome = publish(request)
    sys.stdout.write(outcome.words)
    sys.exit(outcome.code)


if __name__ == "__main__":
    main(sys.argv[1:])
