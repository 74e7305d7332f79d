-- record: the value of a mailbox in the hash `active`: state|activation|fence|message|attempt|first|holder,
-- and perhaps parts behind it.
--
-- state       r ready, h held (a command runs), H held, and something behind the command that runs was
--             removed, w waits for a retry or snoozes, l waits for a limit, q waits in the line (see
--             shared/line.lua), s stopped (paused or parked), u suspended (its durable command waits for what
--             its side record names: see shared/arrive.lua), b blocked (its head also stands in other lines:
--             see shared/several.lua), o, O and U as r, h and u, of a mailbox with one command, which is in
--             `lone` (see shared/lone.lua)
-- activation  id of its entry in the ready stream (r, h, H, o, O), else empty; of a lone command also its
--             message id
-- fence       of the command that runs (h, H, O), else empty
-- message     id of the command that runs (h, H, O), is suspended (u, U) or blocks (b), else empty; what
--             stands before it in the mailbox is settled. Of a lone command that was or is in the line, or
--             was suspended (o, q), its id
-- attempt     how often the oldest command was started
-- first       ms of its first start, 0 if it was never started; below zero: replayed, or durable and begun:
--             its deadline no longer counts
-- holder      the lease under which it runs (h, H, O), its place (q), else empty
-- parts       |key=value each: z of a command that was put off or suspended (see shared/snooze.lua); started,
--             the id of a command that was started and waits to be started again, of use while it is the
--             oldest and `first` is not 0; paid, the id of a command that was suspended: its next start takes
--             no token of a rate; ask, how often a worker had to ask limits for the oldest command and gave
--             no answer: it may die of what it reads for that; err, the last error of the oldest command, as
--             id:ms:text, where %7C is a bar and %25 a percent sign; run, begun and cap of runs (see
--             advance/6a_run.lua); f of flows (see shared/line.lua); at and w
--             (see shared/several.lua); others of later releases; a script that
--             writes the record again keeps those that it does not know
--
-- A later release may have further states, of one letter or more. A script that meets one leaves record, head
-- and activation alone.
--
-- `mailbox_record.py` does the same in Python.

-- Return the seven fields, and the parts behind them as they are, empty if there are none; nil if it is no
-- such record.
local function parse_record(record)
  return string.match(record, '^(%a+)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)(.*)$')
end

-- Return the record of a mailbox whose oldest command does not run. `activation` is empty unless it is ready.
-- `parts` may be nil.
local function pack_record(state, activation, attempt, first, parts)
  return state .. '|' .. activation .. '|||' .. attempt .. '|' .. first .. '|' .. (parts or '')
end

local lined = nil  -- the line, once a script has opened it

-- Put a mailbox into the ready stream, or into the line, and return its record. `head` may be its next
-- command. A script may have written already, so this must not fail: if the ready stream takes nothing, the
-- record names an entry that does not exist, as if the entry had been lost. `reactivate.lua` repairs that.
local function queue(ready, name, attempt, first, parts, head)
  if lined then return lined.join(name, attempt, first, parts, head) end
  local added = redis.pcall('XADD', ready, '*', FIELD.ENVELOPE, name)
  return STATE.READY .. '|' .. (type(added) == 'string' and added or '0-0') .. '|||' .. attempt .. '|'
    .. first .. '|' .. (parts or '')
end

-- Return the record of a held mailbox in which something behind the running command was removed. Any script
-- that does that writes it: the worker may have read ahead what is not there any more.
local function changed_behind(record)
  return STATE.HELD_AND_CHANGED .. string.sub(record, 2)
end

-- Return the last command that runs in a held mailbox: of a run the last one of that.
local function last_running(running, parts)
  return string.match(parts, '|run=([^|:]*)') or running
end

-- Return whether a message was accepted after another one. Ids are numbers in two parts, without zeros before
-- them.
local function is_behind(id, other)
  local ms, count = string.match(id, '^(%d+)-(%d+)$')
  local other_ms, other_count = string.match(other, '^(%d+)-(%d+)$')
  if not ms or not other_ms then return false end
  if ms == other_ms then ms, other_ms = count, other_count end
  if #ms ~= #other_ms then return #ms > #other_ms end
  return ms > other_ms
end

-- Return whether a command that does not run was in a run that ended without settling it.
local function may_have_run(id, parts)
  local last = parts and string.match(parts, '|begun=([^|]*)')
  return last and not is_behind(id, last)
end
