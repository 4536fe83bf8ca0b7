"""`python -m t5x_style.preflight`."""

from t5x_style.preflight import command

if __name__ == "__main__":
    command.main()
