-- reactivate: give mailboxes a new entry in the ready stream if they should have one and have none. Somebody deleted the stream or its
-- entries, or the process that resumed the mailboxes died before it woke them all.
--
-- uses: memory_limit, record, lone, snooze, holds
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[4]   parked    hash: mailbox name -> id of its dead letter
-- KEYS[5…]  mailboxes to look at
-- ARGV[1]   group     of consumers
-- ARGV[2…]  names     of the mailboxes
--
-- returns how many got one
--
-- A command that was running stays so, under a new activation without a holder: the old holder is fenced off, a worker that reads the
-- activation cannot start the command, and when the lease ends, recovery decides by the command's contract. A mailbox in a state that only a
-- later release knows is left to that.

local ready, active, paused, parked = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local function reactivate(name, box)
  local record = redis.call('HGET', active, name) or ''
  local state, activation, fence, message, attempt, first, _, parts = parse_record(record)
  if state and string.find(state, '^[rhHoO]$') then
    if redis.call('XRANGE', ready, activation, activation)[1] then return false end
    if not line_up(active, box, name, record) then return false end  -- the mailbox takes nothing
  elseif state ~= 's' or redis.call('HEXISTS', parked, name) == 1 or holds_of(paused, name) then
    return false
  end
  local id = redis.call('XADD', ready, '*', 'e', name)
  if state == 'h' or state == 'H' or state == 'O' then
    local running = fence .. '|' .. message .. '|' .. attempt .. '|' .. first
    redis.call('HSET', active, name, (state == 'O' and 'h' or state) .. '|' .. id .. '|' .. running .. '|' .. parts)
  else
    redis.call('HSET', active, name, pack_record('r', id, attempt, woken(first, parts), parts))
  end
  return true
end

local count = 0
pass_memory_limit(ready, ARGV[1])
for i = 2, #ARGV do
  if reactivate(ARGV[i], KEYS[i + 3]) then count = count + 1 end
end
return count
