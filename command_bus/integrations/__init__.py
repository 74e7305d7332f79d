"""The bus in other frameworks; each module needs its framework, and nothing else of the package needs it."""
