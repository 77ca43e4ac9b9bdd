"""`python -m cmask.cli` is `cmask`."""

from cmask.cli.main import app

if __name__ == "__main__":
    app(prog_name="cmask")
