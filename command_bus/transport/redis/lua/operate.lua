-- operate: pause, drain or resume a scope (one mailbox, an entity type or all), and wake mailboxes that nothing holds any more.
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> state
-- KEYS[3]   paused    hash: scope -> mode|since in ms|why
-- KEYS[4]   parked    hash: mailbox name -> id of its dead letter
-- KEYS[5]   due       sorted set of what becomes due, by ms
-- KEYS[6]   watched   hash: entity type -> how many events are kept (see telling.lua)
-- KEYS[7]   events    stream of what happened to commands of watched types
-- KEYS[8…]  mailboxes to wake
-- ARGV[1]   group     of consumers
-- ARGV[2]   verb      pause, drain, resume; or wake, which leaves the scope as it is
-- ARGV[3]   scope     a mailbox's name, <entity type>:* (~:* is what has no entity), or *
-- ARGV[4]   reason
-- ARGV[5…]  names     of the mailboxes
--
-- returns how many mailboxes were woken
--
-- A pause takes effect before the next command starts, what runs is not touched. Draining refuses commands and starts what is there. No
-- mailbox is named with a `*`: it is encoded in ids. Paused and parked are independent.

local ready, active, paused, parked, due = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, verb, scope, reason = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local modes = {pause = 'p', drain = 'd'}

local function stopped(name)
  for _, value in ipairs(redis.call('HMGET', paused, name, string.match(name, '^[^:/]*') .. ':*', '*')) do
    if value and string.sub(value, 1, 2) ~= 'd|' then return true end
  end
  return false
end

local function wake(name, box)
  local record = redis.call('HGET', active, name)
  if not record or string.sub(record, 1, 1) ~= 's' or redis.call('HEXISTS', parked, name) == 1 or stopped(name) then return 0 end
  local attempt, first = string.match(record, '^s|[^|]*|[^|]*|[^|]*|([^|]*)|([^|]*)|')
  if redis.call('XLEN', box) == 0 then
    redis.call('DEL', box)
    redis.call('HDEL', active, name)
  elseif redis.call('ZSCORE', due, 'r:' .. name) then
    redis.call('HSET', active, name, 'w||||' .. attempt .. '|' .. first .. '|')
  else
    local id = redis.pcall('XADD', ready, '*', 'e', name)
    id = type(id) == 'string' and id or '0-0'  -- as if it were lost: see repair.lua
    redis.call('HSET', active, name, 'r|' .. id .. '|||' .. attempt .. '|' .. first .. '|')
  end
  return 1
end

redis.call('XACK', ready, group, '0-0')
local changed = false
if modes[verb] then
  local before = redis.call('HGET', paused, scope)
  local same = before and string.match(before, '^' .. modes[verb] .. '|(%d+)|')
  local time = redis.call('TIME')
  local since = same or string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  redis.call('HSET', paused, scope, modes[verb] .. '|' .. since .. '|' .. reason)
  changed = not same
elseif verb == 'resume' then
  changed = redis.call('HDEL', paused, scope) == 1
end
if changed and (string.sub(scope, -1) ~= '*' or string.find(ready, ':0}:', 1, true)) then  -- what all shards do one tells of
  local tell = teller(KEYS[6], KEYS[7])
  tell(({pause = 'paused', drain = 'draining', resume = 'resumed'})[verb], scope, '', '', '', '', reason)
end
local woken = 0
for i = 5, #ARGV do woken = woken + wake(ARGV[i], KEYS[i + 3]) end
return woken
