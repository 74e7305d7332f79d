-- record: the value of a mailbox in the hash `active`: state|activation|fence|message|attempt|first|holder.
--
-- state       r ready, h held (a command runs), w waits for a retry, s stopped (paused or parked)
-- activation  id of its entry in the ready stream (r, h), else empty
-- fence       of the command that runs (h), else empty
-- message     id of the command that runs (h), else empty
-- attempt     how often the oldest command was started
-- first       ms of its first start, 0 if it was never started; below zero: replayed, its deadline no longer counts
-- holder      the lease under which it runs (h), else empty
--
-- `mailbox_record.py` does the same in Python.

-- Return the seven fields; nil if it is no such record.
local function parse_record(record)
  return string.match(record, '^(%a)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|(.*)$')
end

-- Return the record of a mailbox whose oldest command does not run. `activation` is empty unless it is ready.
local function pack_record(state, activation, attempt, first)
  return state .. '|' .. activation .. '|||' .. attempt .. '|' .. first .. '|'
end

-- Put a mailbox into the ready stream, and return its record. A script may have written already, so this must not fail: if the ready
-- stream takes nothing, the record names an entry that does not exist, as if the entry had been lost. `reactivate.lua` repairs that.
local function queue(ready, name, attempt, first)
  local added = redis.pcall('XADD', ready, '*', 'e', name)
  return 'r|' .. (type(added) == 'string' and added or '0-0') .. '|||' .. attempt .. '|' .. first .. '|'
end

