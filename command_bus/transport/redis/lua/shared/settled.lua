-- settled: the commands that stand before the running one of a held mailbox. They are settled, and stay until
-- the next read or trim there.

-- Return the id of a lone command; empty if its record is none.
local function lone_id(record)
  local _, activation, _, message = parse_record(record)
  return message ~= '' and message or activation or ''
end

-- Return the id of the command that runs in a mailbox; nil if none runs.
local function running_in(record)
  local state, _, _, running = parse_record(record or '')
  return (state == STATE.HELD or state == STATE.HELD_AND_CHANGED) and string.find(running, '^%d+%-%d+$')
    and running or nil
end

-- Return how many there are, and the id of the command that runs; 0 and an empty id if none runs.
local function settled_in(box, record)
  local running = running_in(record)
  if not running then return 0, '' end
  return #redis.pcall('XRANGE', box, '-', '(' .. running), running  -- what is no id has none before it
end

