-- hold: pause, drain or resume a scope (one mailbox, an entity type or all), and wake mailboxes that are no
-- longer held.
--
-- uses: memory_limit, record, newer, lone, snooze, holds
-- uses: open_line(line_flow, line_runs, line_turns, line_served, line), open_several(several), agenda, events
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[4]   parked    hash: mailbox name -> id of its dead letter
-- KEYS[5]   due       sorted set of what becomes due, by ms; p:<scope> is the end of a pause
-- KEYS[6]   watched   hash: entity type -> number of events to keep (see shared/events.lua)
-- KEYS[7]   events    stream of what happened to commands of watched types
-- KEYS[8]   lone      hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[9]  flows     hash: what classes and shares have used (see shared/line.lua); this and the next two may
--                    not exist
-- KEYS[10]  turns     sorted set of flows, by their virtual time
-- KEYS[11]  line      sorted set of the places of entities that wait
-- KEYS[12…] mailboxes to wake
-- ARGV[1]   group     of consumers
-- ARGV[2]   verb      pause, drain, resume; over, if a pause has come to its end, and then ended; or wake,
--                     which leaves the scope as it is
-- ARGV[3]   scope     a mailbox's name, <entity type>:* (~:* for commands without an entity), or *
-- ARGV[4]   reason
-- ARGV[5]   till      ms when a pause ends by itself, empty: never; of a pause that is over the time that was
--                     read
-- ARGV[6…]  names     of the mailboxes
--
-- returns how many mailboxes were woken; 'gone' if a pause that is over was ended or changed meanwhile;
-- 'newer' if the scope is one mailbox
--         in a state that only a later release knows: nothing was changed
--
-- A pause takes effect before the next command starts; a command that runs is not touched. Draining refuses
-- new commands and starts those that wait. No mailbox's name contains a `*`: it is encoded in ids. Paused and
-- parked are independent.
--
-- Each pause, drain and resume writes or removes the one end of its scope. The end of a pause that is over
-- stays until all its mailboxes are awake, so that a worker that dies in between leaves it due.

local ready, active, paused, parked, due = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, verb, scope, reason, till = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local modes = {pause = 'p', drain = 'd'}

local several = open_several({})

local function wake(name, box)
  local record = redis.call('HGET', active, name)
  local state, _, _, _, attempt, first, _, parts = parse_record(record or '')
  if (state ~= STATE.STOPPED and state ~= STATE.BLOCKED) or redis.call('HEXISTS', parked, name) == 1
    or holds_of(paused, name) then
    return 0
  end
  parts = several.without_lines(parts)
  if redis.call('XLEN', box) == 0 then
    close(active, KEYS[8], box, name)
  elseif redis.call('ZSCORE', due, 'r:' .. name) then
    redis.call('HSET', active, name, pack_record(STATE.RETRYING, '', attempt, first, parts))
  else
    redis.call('HSET', active, name,
      queue(ready, name, attempt, woken(first, parts), parts, lined and lined.head_of(box)))
  end
  return 1
end

pass_memory_limit(ready, group)
if is_newer(redis.call('HGET', active, scope)) then return 'newer' end
local changed, ending = false, 'p:' .. scope
if verb == 'over' or verb == 'ended' then
  if tonumber(redis.call('ZSCORE', due, ending) or '') ~= tonumber(till) then return 'gone' end
  if verb == 'ended' then return redis.call('ZREM', due, ending) end
elseif verb == 'pause' and till ~= '' then
  set_due(due, ready, ending, till)
elseif verb ~= 'wake' then
  redis.call('ZREM', due, ending)
end
if modes[verb] then
  local before = redis.call('HGET', paused, scope)
  local same = before and string.match(before, '^' .. modes[verb] .. '|(%d+)|')
  local time = redis.call('TIME')
  local since = same or string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  redis.call('HSET', paused, scope, modes[verb] .. '|' .. since .. '|' .. reason)
  changed = not same
elseif verb ~= 'wake' then
  changed = redis.call('HDEL', paused, scope) == 1
end
-- Of a scope on all shards, the first publishes.
if changed and (string.sub(scope, -1) ~= '*' or string.find(ready, ':0}:', 1, true)) then
  local publish = publisher(KEYS[6], KEYS[7])
  publish(({pause = 'paused', drain = 'draining', resume = 'resumed', over = 'resumed'})[verb], scope, '', '',
    '', '', reason)
end
local woken = 0
local queue_up = redis.call('EXISTS', KEYS[9]) == 1 and open_line(ready, active, KEYS[9], KEYS[10], KEYS[11])
for i = 6, #ARGV do woken = woken + wake(ARGV[i], KEYS[i + 6]) end
if queue_up then queue_up.finish() end
return woken
