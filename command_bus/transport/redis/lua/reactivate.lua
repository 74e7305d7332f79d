-- reactivate: give mailboxes a new entry in the ready stream if they should have one and have none. Somebody
-- deleted the stream or its entries or a place in the line, or the process that resumed the mailboxes died
-- before it woke them all. Repair the lines of commands that stand in several, too (see shared/several.lua).
--
-- uses: memory_limit, record, newer, lone, snooze, holds
-- uses: open_line(line_flow, line_runs, line_turns, line_served, line), open_several(several), rewrite
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[4]   parked    hash: mailbox name -> id of its dead letter
-- KEYS[5]  flows     hash: what classes and shares have used (see shared/line.lua); this and the next two may
--                    not exist
-- KEYS[6]  turns     sorted set of flows, by their virtual time
-- KEYS[7]  line      sorted set of the places of entities that wait
-- KEYS[8]   lone     hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[9]   stats    hash of counters
-- KEYS[10…] mailboxes to look at
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
local several = open_several({ready = ready, active = active, lone = KEYS[8], paused = paused})
local SEEN = 1000  -- entries of a home in which the command of a place is looked for

-- Return whether a home has the command of a place; true if it has too much to tell, and while somebody has
-- deleted the one that was started there: it holds its lines until its worker has settled it.
local function is_at_home(home, name, id, box)
  local key, pair = several.key_of(box, name, home), ' ' .. name .. '=' .. id .. ' '
  if type(redis.pcall('XLEN', key)) ~= 'number' then return false end
  local started = string.match(redis.call('HGET', active, home) or '', '|w=([%d-]+)')
  if started and #redis.call('XRANGE', key, started, started) == 0 then return true end
  local entries = redis.call('XRANGE', key, '-', '+', 'COUNT', SEEN)
  for _, entry in ipairs(entries) do
    local text = several.field_in(entry[2], FIELD.LINES)
    if text and string.find(' ' .. text, pair, 1, true) then return true end
  end
  return #entries == SEEN
end

-- Return what an entry says of its places without those that somebody deleted; false if none is missing.
local function places_left(fields, name, box)
  local text, left = several.field_in(fields, FIELD.LINES), ''
  for other, id in string.gmatch(text, '(%S+)=(%S+) ') do
    local there = redis.pcall('XRANGE', several.key_of(box, name, other), id, id)[1]
    if there then left = left .. other .. '=' .. id .. ' ' end
  end
  return left ~= text and left
end

-- Mend a home one of whose places somebody deleted. It joins the ends of all its lines: a place at the end of
-- one line alone could stand behind what waits for this home. If it was started, it keeps the lines that it
-- has, and goes on without the other.
local function mend(head, name, box, is_started)
  local left = places_left(head[2], name, box)
  if not left then return false end
  local fields = {unpack(head[2])}
  local joined = not is_started and several.join_all(fields, name, box, '1')
  if joined and type(redis.pcall('XADD', box, '*', unpack(fields))) == 'string' then
    local gone = several.free_all(head[2], name, box) + redis.call('XDEL', box, head[1])
    redis.pcall('HINCRBY', KEYS[9], 'depth', 1 + joined - gone)
  elseif joined then
    several.free_all(fields, name, box)
  end
  return joined or rewrite_head(box, KEYS[8], name, left, FIELD.LINES)
end

-- Return whether a blocked mailbox is to be looked at by a worker.
local function is_overlooked(name, box, message, is_started, at)
  local head = redis.call('XRANGE', box, '-', '+', 'COUNT', 1)[1]
  if not head or head[1] ~= message then
    -- Somebody deleted the place of a command that waits for it, or runs: others would run beside it.
    local place = {FIELD.ENVELOPE, several.place, FIELD.HOME, at}
    return not (at and is_at_home(at, name, message, box) and put_first(box, message, place))
  end
  local home, text = several.field_in(head[2], FIELD.HOME), several.field_in(head[2], FIELD.LINES)
  if home and not is_at_home(home, name, message, box) then
    redis.call('XDEL', box, message)
    redis.pcall('HINCRBY', KEYS[9], 'depth', -1)
    return true
  end
  return not home and (not text or mend(head, name, box, is_started) or several.is_first(text))
end

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
  elseif state == STATE.BLOCKED then
    local is_started, at = attempt ~= '0' or first ~= '0', string.match(parts, '|at=([^|]*)')
    if not is_overlooked(name, box, message, is_started, at) then return false end
    parts = several.without_lines(parts)
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
  if reactivate(ARGV[i], KEYS[i + 8]) then count = count + 1 end
end
if queue_up then queue_up.finish() end
return count
