-- tell: bring a signal, the wish that it ends, or what came of a call, to a durable command.
--
-- uses: memory_limit, record, newer, lone, holds
-- uses: open_line(line_flow, line_runs, line_turns, line_served, line), arrive
--
-- KEYS[1]   ready      stream of activations
-- KEYS[2]   active     hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   paused     hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[4]   due        sorted set of what becomes due, by ms
-- KEYS[5]   suspended  hash: mailbox name -> the command that waits (see shared/arrive.lua)
-- KEYS[6]   flows      hash: what classes and shares have used (see shared/line.lua); this and the next two
--                      may not exist
-- KEYS[7]   turns      sorted set of flows, by their virtual time
-- KEYS[8]   line       sorted set of the places of entities that wait
-- KEYS[9]   mailbox    of the command
-- KEYS[10]  mark       of the command
-- KEYS[11]  side       record of the command (see shared/arrive.lua)
-- ARGV[1]   group      of consumers
-- ARGV[2]   name       of the mailbox
-- ARGV[3]   kind       signal, cancel or outcome
-- ARGV[4]   what       the name of the signal or the call
-- ARGV[5]   once       id of the signal: one is taken once; or of the command that was called
-- ARGV[6]   value      of the signal, the wish, or the outcome
-- ARGV[7]   ttl        ms for which what comes before the first start is kept, at least
-- ARGV[8]   parked     1 if a dead letter of the command parks the mailbox; else empty
-- ARGV[9]   signals    most of one name that the command has waited for
-- ARGV[10]  bytes      most of their values
-- ARGV[11]  others     most of all other names
-- ARGV[12]  bytes      most of their values
--
-- returns 'taken'; 'repeated' if it came before; 'ending' of a wish if it is decided already how the command
-- ends; 'gone' if the command does not wait in this mailbox any more; 'full' if it takes no further
--         signal of this name
--
-- A signal also reaches a command that parks its mailbox: it goes on from its side record once it is
-- replayed.

local keys = {ready = KEYS[1], active = KEYS[2], paused = KEYS[3], due = KEYS[4], suspended = KEYS[5]}
local box, side, name, kind, what, once, value =
  KEYS[9], KEYS[11], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local mark = redis.call('GET', KEYS[10])
local function is_parked()
  if ARGV[8] == '' or parse_record(redis.call('HGET', KEYS[2], name) or '') ~= STATE.STOPPED then
    return false
  end
  local head, message = redis.call('XRANGE', box, '-', '+', 'COUNT', 1)[1], redis.call('HGET', side, 'm')
  return head and (not message or message == head[1])
end
-- Return whether a signal has room. Names that are not waited for do not take it from those that the command
-- has waited for.
local is_awaited = kind == 'signal' and redis.call('HEXISTS', side, 'ga:' .. what) == 1
local function has_room()
  local count, bytes, most, most_bytes = 'gq', 'gb', ARGV[11], ARGV[12]
  if is_awaited then count, bytes, most, most_bytes = 'gn:' .. what, 'gb:' .. what, ARGV[9], ARGV[10] end
  local came = redis.call('HMGET', side, count, bytes)
  return tonumber(came[1] or 0) < tonumber(most) and tonumber(came[2] or 0) + #value <= tonumber(most_bytes)
end
if (not mark or string.sub(mark, 1, 1) ~= MARK.ACCEPTED or string.sub(mark, 10) ~= name)
  and not is_parked() then
  return 'gone'
end
pass_memory_limit(KEYS[1], ARGV[1])
local queue_up = redis.call('EXISTS', KEYS[6]) == 1 and open_line(KEYS[1], KEYS[2], KEYS[6], KEYS[7], KEYS[8])
local answer = 'taken'
if kind == 'cancel' then
  if redis.call('HSETNX', side, 'cancel', value) == 1 then
    resume(keys, name, box, redis.call('HGET', side, 'm'), true)
  else
    answer = 'repeated'  -- what undoes it may wait for a retry
  end
  if redis.call('HEXISTS', side, 'k') == 1 then answer = 'ending' end
elseif kind == 'outcome' then
  local arrived = arrive_outcome(keys, side, what, once, value, name, box)
  if arrived == nil then return 'gone' end
  if not arrived then answer = 'repeated' end
elseif redis.call('HEXISTS', side, 'gi:' .. what .. '#' .. once) == 1 then
  answer = 'repeated'
elseif not has_room() then
  answer = 'full'
else
  redis.call('HSET', side, 'gi:' .. what .. '#' .. once, '1')
  local number = redis.call('HINCRBY', side, 'gn:' .. what, 1)
  redis.call('HINCRBY', side, 'gb:' .. what, #value)
  if not is_awaited then
    redis.call('HINCRBY', side, 'gq', 1)
    redis.call('HINCRBY', side, 'gb', #value)
  end
  arrive_signal(keys, side, 'g:' .. what .. '#' .. string.format('%.0f', number), value, name, box)
end
if redis.call('HEXISTS', side, 'm') == 0 then redis.call('PEXPIRE', side, ARGV[7]) end
if queue_up then queue_up.finish() end
return answer
