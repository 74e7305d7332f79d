"""Commands that belong together: one event with three subscriptions, of which one is parked for a while, and a chord of pictures bound to a sheet.

`python -m examples.together` runs it while workers are killed, and checks what came of it.
"""
