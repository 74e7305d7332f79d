-- remove: take waiting commands of one mailbox out of line (cancel, purge); the command that runs is left alone.
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> state
-- KEYS[3]   stats     hash of counters
-- KEYS[4]   due       sorted set of what becomes due, by ms
-- KEYS[5]   delayed   hash: command id -> mailbox name, newline, envelope
-- KEYS[6]   later     hash: mailbox name -> number of delayed commands
-- KEYS[7]   parked    hash: mailbox name -> id of its dead letter
-- KEYS[8]   dead      stream of dead letters
-- KEYS[9]   mailbox
-- KEYS[10]  watched   hash: entity type -> how many events are kept (see telling.lua)
-- KEYS[11]  events    stream of what happened to commands of watched types
-- KEYS[12…] for each command its mark, its inbox (the mark again if nobody waits), its dispatch's record and stream of outcomes
--           (the mark again if none keeps them)
-- ARGV[1]   group     of consumers
-- ARGV[2]   name      of the mailbox
-- ARGV[3]   reply ttl in ms, of an inbox
-- ARGV[4…]  for each command: message id, or d:<command id> if delayed; mark ttl in ms, mark, reply, outcome
--
-- returns how many were removed

local ready, active, stats, due, delayed = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local later, parked, dead, box = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local group, name, reply_ttl = ARGV[1], ARGV[2], ARGV[3]

redis.call('XACK', ready, group, '0-0')
local record = redis.call('HGET', active, name)
local state, activation, running = '', '', ''
if record then state, activation, running = string.match(record, '^(%a)|([^|]*)|[^|]*|([^|]*)|') end
local letter = redis.call('HGET', parked, name)
local head = redis.call('XRANGE', box, '-', '+', 'COUNT', 1)[1]
local head_id = head and head[1] or ''

local tell, is_told = teller(KEYS[10], KEYS[11])
local function envelope_of(id)
  if not is_told(name) then return '' end
  if string.sub(id, 1, 2) == 'd:' then return string.match(redis.call('HGET', delayed, string.sub(id, 3)) or '', '\n(.*)') or '' end
  local entry = redis.call('XRANGE', box, id, id)[1]
  return entry and entry[2][1] == 'e' and entry[2][2] or ''
end

local function take_out(id)
  if string.sub(id, 1, 2) == 'd:' then
    local command = string.sub(id, 3)
    if redis.call('HDEL', delayed, command) == 0 then return false end
    redis.call('ZREM', due, id)
    local left = redis.pcall('HINCRBY', later, name, -1)
    if type(left) ~= 'number' or left <= 0 then redis.call('HDEL', later, name) end
    return true
  end
  if (state == 'h' and id == running) or redis.call('XDEL', box, id) == 0 then return false end
  if id == head_id then
    redis.call('ZREM', due, 'r:' .. name)
    if letter then
      redis.call('HDEL', parked, name)
      redis.call('XDEL', dead, letter)
    end
    if state == 'w' or (state == 's' and letter) then state = 'free' end
    if state == 'r' or state == 's' then
      redis.call('HSET', active, name, state .. '|' .. activation .. '|||0|0|')
    end
  end
  return true
end

local removed = 0
local key = 11
for arg = 4, #ARGV, 5 do
  local envelope = envelope_of(ARGV[arg])
  if take_out(ARGV[arg]) then
    removed = removed + 1
    tell('cancelled', name, envelope, '', '', '', '')
    if ARGV[arg + 2] ~= '' then redis.call('SET', KEYS[key + 1], ARGV[arg + 2], 'PX', ARGV[arg + 1]) end
    if ARGV[arg + 3] ~= '' then
      redis.pcall('LPUSH', KEYS[key + 2], ARGV[arg + 3])  -- behind the first write nothing fails
      redis.pcall('PEXPIRE', KEYS[key + 2], reply_ttl)
    end
    if ARGV[arg + 4] ~= '' then
      local keep = redis.pcall('HMGET', KEYS[key + 3], 'keep_ms', 'keep_max')
      if keep[1] and keep[1] ~= '0' then
        redis.pcall('XADD', KEYS[key + 4], 'MAXLEN', '~', keep[2], '*', 'r', ARGV[arg + 4])
        redis.pcall('PEXPIRE', KEYS[key + 4], keep[1])
      end
    end
  end
  key = key + 4
end

if record and redis.call('XLEN', box) == 0 and state ~= 'h' then
  if activation ~= '' then
    redis.call('XACK', ready, group, activation)
    redis.call('XDEL', ready, activation)
  end
  redis.call('DEL', box)
  redis.call('HDEL', active, name)
elseif state == 'free' then
  local id = redis.pcall('XADD', ready, '*', 'e', name)
  redis.call('HSET', active, name, 'r|' .. (type(id) == 'string' and id or '0-0') .. '|||0|0|')  -- as if it were lost: see repair.lua
end
if removed > 0 then redis.pcall('HINCRBY', stats, 'depth', -removed) end
return removed
