"""Which function handles a message: registration, signatures, and the injection of arguments."""
