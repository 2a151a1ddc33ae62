"""What tests share; `tests/README.md` says what each module is for."""
