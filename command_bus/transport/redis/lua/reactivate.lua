-- reactivate: give mailboxes a new entry in the ready stream if they should have one and have none. Somebody
-- deleted the stream or its entries or a place in the line, or the process that resumed the mailboxes died
-- before it woke them all.
--
-- uses: memory_limit, record, newer, lone, snooze, holds
-- uses: open_line(line_flow, line_runs, line_turns, line_served, line)
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[4]   parked    hash: mailbox name -> id of its dead letter
-- KEYS[5]  flows     hash: what classes and shares have used (see shared/line.lua); this and the next two may
--                    not exist
-- KEYS[6]  turns     sorted set of flows, by their virtual time
-- KEYS[7]  line      sorted set of the places of entities that wait
-- KEYS[8…]  mailboxes to look at
-- ARGV[1]   group     of consumers
-- ARGV[2…]  names     of the mailboxes
--
-- returns how many got one
--
-- A command that was running stays so, under a new activation without a holder: the old holder is fenced off,
-- a worker that reads the activation cannot start the command, and when the lease ends, recovery decides by
-- the command's contract. A mailbox in a state that only a later release knows is left to that.

local ready, active, paused, parked = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local queue_up = redis.call('EXISTS', KEYS[5]) == 1 and open_line(ready, active, KEYS[5], KEYS[6], KEYS[7])
local function reactivate(name, box)
  local record = redis.call('HGET', active, name) or ''
  local state, activation, fence, message, attempt, first, place, parts = parse_record(record)
  if state == STATE.IN_LINE then
    if queue_up and queue_up.has(name, place) then return false end
    if not line_up(active, box, name, record) then return false end
  elseif state and string.find(state, '^[rhHoO]$') then
    -- What is no id names none.
    if redis.pcall('XRANGE', ready, activation, activation)[1] then return false end
    if not line_up(active, box, name, record) then return false end  -- the mailbox takes nothing
  elseif state ~= STATE.STOPPED or redis.call('HEXISTS', parked, name) == 1 or holds_of(paused, name) then
    return false
  end
  if queue_up and state ~= STATE.HELD and state ~= STATE.HELD_AND_CHANGED and state ~= STATE.LONE_HELD then
    redis.call('HSET', active, name, queue(ready, name, attempt, first, parts, lined.head_of(box)))
    return true
  end
  local id = redis.call('XADD', ready, '*', FIELD.ENVELOPE, name)
  if state == STATE.HELD or state == STATE.HELD_AND_CHANGED or state == STATE.LONE_HELD then
    local running = fence .. '|' .. message .. '|' .. attempt .. '|' .. first
    redis.call('HSET', active, name,
      (state == STATE.LONE_HELD and STATE.HELD or state) .. '|' .. id .. '|' .. running .. '|' .. parts)
  else
    redis.call('HSET', active, name, pack_record(STATE.READY, id, attempt, woken(first, parts), parts))
  end
  return true
end

local count = 0
pass_memory_limit(ready, ARGV[1])
for i = 2, #ARGV do
  if reactivate(ARGV[i], KEYS[i + 6]) then count = count + 1 end
end
if queue_up then queue_up.finish() end
return count
