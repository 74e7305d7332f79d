"""Other libraries, all measured in one way.

programs/      one small program a peer, speaking `benchmarks.protocol`
requirements/  what each is installed from: exact versions and hashes (`NAME.in` is what was asked for, `lock` writes the others)
field          the peers, and the settings each is run with
environments   makes an environment for each
cases          what is measured

This module imports nothing: in a peer's environment there is nothing that the project's modules need.
"""
