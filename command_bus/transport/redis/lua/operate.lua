-- operate: pause or resume one mailbox.
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> state
-- KEYS[3]   paused    hash: mailbox name -> why
-- KEYS[4]   parked    hash: mailbox name -> id of its dead letter
-- KEYS[5]   due       sorted set of what becomes due, by ms
-- KEYS[6]   mailbox
-- ARGV[1]   group     of consumers
-- ARGV[2]   verb      pause, resume
-- ARGV[3]   name      of the mailbox
-- ARGV[4]   reason
--
-- returns 1 if something changed, else 0
--
-- A pause takes effect before the next command starts; what runs is not touched. Paused and parked are independent.

local ready, active, paused, parked, due, box = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local group, verb, name, reason = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

redis.call('XACK', ready, group, '0-0')
if verb == 'pause' then
  return redis.call('HSET', paused, name, reason)
end

local changed = redis.call('HDEL', paused, name)
local record = redis.call('HGET', active, name)
if record and string.sub(record, 1, 1) == 's' and redis.call('HEXISTS', parked, name) == 0 then
  local attempt, first = string.match(record, '^s|[^|]*|[^|]*|[^|]*|([^|]*)|([^|]*)|')
  if redis.call('XLEN', box) == 0 then
    redis.call('DEL', box)
    redis.call('HDEL', active, name)
  elseif redis.call('ZSCORE', due, 'r:' .. name) then
    redis.call('HSET', active, name, 'w||||' .. attempt .. '|' .. first .. '|')
  else
    local id = redis.call('XADD', ready, '*', 'e', name)
    redis.call('HSET', active, name, 'r|' .. id .. '|||' .. attempt .. '|' .. first .. '|')
  end
end
return changed
