"""The functions that handle messages: registration, signatures, and the injection of arguments."""
