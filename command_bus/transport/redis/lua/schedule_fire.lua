-- schedule_fire: accept the firings of schedules into their mailboxes, each number once.
--
-- uses: record, newer, lone, holds, open_line(line_flow, line_runs, line_turns, line_served, line)
-- uses: alone, put_one, delayed, postpone, envelope_id, events, incarnation
--
-- KEYS[1]   ready    stream of activations
-- KEYS[2]   active   hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   stats    hash of counters, with the shard's incarnation
-- KEYS[4]   later    hash: mailbox name -> number of delayed commands (see shared/delayed.lua)
-- KEYS[5]   paused   hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[6]   watched  hash: entity type -> number of events to keep (see shared/events.lua)
-- KEYS[7]   events   stream of what happened to commands of watched types
-- KEYS[8]   lone     hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[9]   fired    hash: schedule -> incarnation:number of its last firing in this shard; newline, schedule
--                    -> that of the last refusal that was told
-- KEYS[10]  flows    hash: what classes and shares have used (see shared/line.lua); this and the next two may
--                    not exist
-- KEYS[11]  turns    sorted set of flows, by their virtual time
-- KEYS[12]  line     sorted set of the places of entities that wait
-- KEYS[13]  due      sorted set of what becomes due, by ms
-- KEYS[14]  delayed  hash: command id -> mailbox name, newline, entry (see shared/entry_text.lua)
-- KEYS[15…] for each firing its mailbox, and the mark of its command id
-- ARGV[1]   limit    of commands in this shard; perhaps a colon and the limit of mailboxes with work
-- ARGV[2]   shard    its incarnation, as it was read
-- ARGV[3…]  for each firing: schedule, incarnation, number, '1' if it counts although there is nothing to
--           compare it with, mailbox name, commands that the mailbox may hold, digest, envelope, '1' if it is
--           late, flow (see
--           shared/line.lua)
--
-- returns a character per firing: + accepted, = this number or a later one was before, k the command id is
-- known, u there is nothing to
--         compare the number with; refused: d drained, e mailbox full, t shard full, n too many mailboxes
--         have work, w the mailbox takes nothing. 'gone' if the shard is of another incarnation
--
-- What is refused was not touched; where schedules are watched, it is told once for each number. The first
-- write may fail at the memory limit, with nothing done; after it nothing fails.

local ready, active, stats, later, paused, lone, fired =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[8], KEYS[9]
local keys = {ready = ready, active = active, lone = lone, paused = paused}
local call, pcall = redis.call, redis.pcall
local most, most_boxes = string.match(ARGV[1], '^(%d+):?(%d*)$')
-- The second is nil where their number is not limited.
most, most_boxes = tonumber(most), tonumber(most_boxes)
if is_of_another_time(stats, ARGV[2]) then return 'gone' end
local publish, is_watched
if call('EXISTS', KEYS[6]) == 1 then publish, is_watched = publisher(KEYS[6], KEYS[7]) end
local queue_up = call('EXISTS', KEYS[10]) == 1 and open_line(ready, active, KEYS[10], KEYS[11], KEYS[12])

-- Return what a number is: '=' was before, 'u' not comparable; nil: it may be fired.
local function compared(schedule, incarnation, number, armed)
  local value = call('HGET', fired, schedule)
  local kept, last = string.match(value or '', '^(.*):(%d+)$')
  if kept ~= incarnation then return not armed and 'u' or nil end
  return tonumber(last) >= number and '=' or nil
end

local function refusal(name, box, room, record)
  local length = pcall('XLEN', box)
  if type(length) ~= 'number' then return ADMISSION.WRONG_TYPE end
  local _, drained = holds_of(paused, name)
  if drained then return ADMISSION.DRAINING end
  local depth = length + (is_lone(record) and 1 or 0) + (tonumber(call('HGET', later, name)) or 0)
  if depth >= room then return ADMISSION.ENTITY_FULL end
  if (tonumber(call('HGET', stats, 'depth')) or 0) >= most then return ADMISSION.TOTAL_FULL end
  return most_boxes and not record and call('HLEN', active) >= most_boxes and ADMISSION.TOO_MANY_ENTITIES
    or nil
end

-- Tell that a firing is refused, unless that was told before; return the answer.
local function refuse(answer, schedule, stamp, envelope)
  local scope, field = '@schedules:' .. schedule, '\n' .. schedule
  if publish and is_watched(scope) and call('HGET', fired, field) ~= stamp then
    pcall('HSET', fired, field, stamp)
    publish('refused', scope, envelope, '', '', '', answer)
  end
  return answer
end

local function fire(arg, box, mark)
  local schedule, incarnation, number, armed = ARGV[arg], ARGV[arg + 1], ARGV[arg + 2], ARGV[arg + 3] == '1'
  local name, room, digest, envelope = ARGV[arg + 4], tonumber(ARGV[arg + 5]), ARGV[arg + 6], ARGV[arg + 7]
  local answer = compared(schedule, incarnation, tonumber(number), armed)
  if answer then return answer end
  local before, record = call('HGET', fired, schedule), call('HGET', active, name)
  local known = pcall('GET', mark)
  local stamp = incarnation .. ':' .. number
  answer = type(known) == 'table' and 'w' or not known and refusal(name, box, room, record)
  if answer then return refuse(answer, schedule, stamp, envelope) end
  call('HSET', fired, schedule, stamp)
  if not queue_up and ARGV[arg + 9] ~= '1' then  -- the first class or tenant: a line is in use
    call('HSET', KEYS[10], 'c0', '0')
    queue_up = open_line(ready, active, KEYS[10], KEYS[11], KEYS[12])
  end
  if known then return 'k' end
  local id = id_in(envelope)
  local at = waits_until(KEYS[13], KEYS[14], later, name, id, 0)
  local fault
  if at then
    fault = keep_delayed(ready, KEYS[13], KEYS[14], later, name, id, at, with_flow(envelope, ARGV[arg + 9]))
  else
    fault = put_one(keys, name, box, envelope, ARGV[arg + 9], queue_up)
  end
  if fault then
    if before then call('HSET', fired, schedule, before) else call('HDEL', fired, schedule) end
    return refuse(ADMISSION.WRONG_TYPE, schedule, stamp, envelope)
  end
  call('SET', mark, MARK.ACCEPTED .. digest .. name)
  for _, counter in ipairs({'depth', 'accepted', 'fired', ARGV[arg + 8] == '1' and 'late' or nil}) do
    pcall('HINCRBY', stats, counter, 1)
  end
  if publish then
    pcall('HDEL', fired, '\n' .. schedule)
    publish('accepted', name, envelope, '', '', '', '')
  end
  return '+'
end

local answers = {}
for arg = 3, #ARGV, 10 do
  local key = 15 + 2 * #answers
  answers[#answers + 1] = fire(arg, KEYS[key], KEYS[key + 1])
end
if queue_up then queue_up.finish() end
return table.concat(answers)
