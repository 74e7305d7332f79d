-- letters: the names of the letters that scripts compare. `scripts.py` writes the letter in place of its name
-- when it reads a script: a local would cost each function that shares it, and a script may have 200. A
-- pattern spells its letters.

-- State of a mailbox's record (see shared/record.lua).
STATE.READY = 'r'
STATE.HELD = 'h'
STATE.HELD_AND_CHANGED = 'H'
STATE.RETRYING = 'w'
STATE.LIMITED = 'l'
STATE.IN_LINE = 'q'
STATE.STOPPED = 's'
STATE.SUSPENDED = 'u'
STATE.BLOCKED = 'b'
STATE.LONE = 'o'
STATE.LONE_HELD = 'O'
STATE.LONE_SUSPENDED = 'U'

-- Verb of a step of *advance*: the first letter of its operation.
VERB.TAKE = 't'
VERB.COMPLETE = 'd'
VERB.REJECT = 'n'
VERB.EXPIRE = 'x'
VERB.CANCEL = 'c'
VERB.BURY = 'b'
VERB.PARK = 'p'
VERB.WAIT = 'w'
VERB.GIVE_BACK = 'g'
VERB.WAIT_FOR_LIMIT = 'l'
VERB.SUSPEND = 'u'
VERB.EXTEND = 'e'

-- What follows a step: the second letter of its operation.
FOLLOW.STAY = 's'
FOLLOW.YIELD = 'y'
FOLLOW.LEAVE = 'l'

-- What a step leaves: the other letters of its operation.
LEFT.UNUSED_TOKENS = 't'
LEFT.MARK = 'm'
LEFT.WAITING_MARK = 'e'
LEFT.REPLY = 'i'
LEFT.UNIQUE_KEY = 'u'
LEFT.FOLLOW_UPS = 'f'
LEFT.SIDE_RECORD = 'x'
LEFT.CALLER = 'r'
LEFT.STATE = 's'
LEFT.RUN = 'k'
SIDE.KEPT = 'k'
PAUSE.SNOOZE = 's'

-- Field of an entry: of a mailbox, of the ready stream, or of a delayed command.
FIELD.ENVELOPE = 'e'
FIELD.IN_LONE = 'l'
FIELD.UNIQUE_KEY = 'u'
FIELD.FLOW = 'f'
FIELD.LINES = 'w'
FIELD.HOME = 's'

-- Kind of a command that is accepted, and its admission: by the names of `Admission` in Python.
KIND.PLAIN = 'p'
KIND.MARKED = 'm'
KIND.DELAYED = 'd'
KIND.MARKED_AND_DELAYED = 'b'
ADMISSION.WRONG_TYPE = 'w'
ADMISSION.DRAINING = 'd'
ADMISSION.PREDECESSOR_REFUSED = 'p'
ADMISSION.OUT_OF_SEQUENCE = 's'
ADMISSION.ENTITY_FULL = 'e'
ADMISSION.TOTAL_FULL = 't'
ADMISSION.TOO_MANY_ENTITIES = 'n'
ADMISSION.FOLDED = 'u'
ADMISSION.REPLACED = 'r'
ADMISSION.MAY_NOT_REPLACE = 'x'

-- How a unique key folds, and the place of the command that holds it (see shared/unique.lua).
MODE.FIRST_UNTIL_SETTLED = 'f'
MODE.LATEST = 'l'
PLACE.DELAYED = 'd'
PLACE.SETTLED = 's'

-- State of a mark: its first letter (see shared/known.lua).
MARK.ACCEPTED = 'q'
MARK.SETTLED = 'd'

-- Kind of a pass of limits (see shared/limits.lua).
PASS.GRANT = 'g'
PASS.START = 's'

-- Kind of a field that a durable command stores, and the manner: '1' or not durable (see record_steps.lua).
STORED.PROGRESS = 'p'
STORED.LOG = 'l'
STORED.TIME = 't'
STORED.CALL = 'c'
MANNER.NOT_DURABLE = 'd'

-- Field of the hash `relayed` (see relay.lua).
RELAYED.GENERATION = 'g'
