"""Acts of operators. Each asks first, names what it will change and how much, takes a reason, and is in the audit log."""
