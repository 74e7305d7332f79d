-- enqueue: accept commands into their mailboxes, in order, and activate the entities that were idle.
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> state
-- KEYS[3]   stats     hash of counters
-- KEYS[4]   due       sorted set of what becomes due, by ms
-- KEYS[5]   delayed   hash: command id -> mailbox name, newline, envelope
-- KEYS[6]   later     hash: mailbox name -> number of delayed commands
-- KEYS[7]   paused    hash: mailbox name -> why
-- KEYS[8…]  the mailboxes, then one mark per command
-- ARGV[1]   token     of this batch: the same batch asked again is answered as the first time
-- ARGV[2]   limit     of commands in this shard
-- ARGV[3]   count     of mailboxes; then for each: name, limit of its commands
-- ARGV[…]   for each command: index of its mailbox, digest, delay in ms, id if delayed, envelope
--
-- returns one character per command: + accepted, = duplicate, ! same id with another payload, e mailbox full,
--         t shard full, p an earlier command of this mailbox was refused, w a key is of another type
--
-- No write before the first SET, so that a server at its memory limit refuses the whole batch with nothing done.

local ready, active, stats, due, delayed, later, paused = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local token, limit, boxes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local before = tonumber(redis.call('HGET', stats, 'depth') or '0')
local any_later = redis.call('EXISTS', later) == 1
local any_paused = redis.call('EXISTS', paused) == 1
local first_due = nil

local room, broken, refused, activated, own = {}, {}, {}, {}, {}
for box = 1, boxes do
  local length = redis.pcall('XLEN', KEYS[7 + box])
  if type(length) == 'number' then
    local waiting = any_later and tonumber(redis.call('HGET', later, ARGV[2 + 2 * box]) or '0') or 0
    room[box] = tonumber(ARGV[3 + 2 * box]) - length - waiting
  else
    broken[box] = true
  end
end

local function activate(box, name)
  activated[box] = true
  if redis.call('HEXISTS', active, name) == 1 then return end
  if any_paused and redis.call('HEXISTS', paused, name) == 1 then
    redis.call('HSET', active, name, 's||||0|0|')
  else
    local id = redis.call('XADD', ready, '*', 'e', name)
    redis.call('HSET', active, name, 'r|' .. id .. '|||0|0|')
  end
end

local function postpone(name, id, delay, envelope)
  local at = now + delay
  redis.call('HSET', delayed, id, name .. '\n' .. envelope)
  redis.call('HINCRBY', later, name, 1)
  if not first_due then
    local head = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
    first_due = tonumber(head[2] or '9007199254740991')
  end
  redis.call('ZADD', due, at, 'd:' .. id)
  if at < first_due then
    first_due = at
    redis.call('XADD', ready, '*', 'tick', '1')
  end
end

local function known(mark, digest)
  local value = redis.pcall('GET', mark)
  if type(value) == 'table' then return 'w' end
  if not value then return nil end
  if string.sub(value, 2, 9) ~= digest then return '!' end
  if own[mark] or string.sub(value, 1, 1) ~= 'q' or string.sub(value, 10, 17) ~= token then return '=' end
  own[mark] = true
  return '+'
end

local outcomes = {}
local accepted = 0
local arg = 3 + 2 * boxes
local mark = 7 + boxes
while arg < #ARGV do
  local box, digest, delay = tonumber(ARGV[arg + 1]), ARGV[arg + 2], tonumber(ARGV[arg + 3])
  mark = mark + 1
  local outcome
  if broken[box] then
    outcome = 'w'
  elseif refused[box] or room[box] < 1 or before + accepted >= limit then
    outcome = known(KEYS[mark], digest)
    if not outcome then
      outcome = refused[box] and 'p' or (room[box] < 1 and 'e' or 't')
      refused[box] = true
    end
  else
    local name = ARGV[2 + 2 * box]
    if redis.call('SET', KEYS[mark], 'q' .. digest .. token .. name, 'NX') then
      if delay > 0 then
        postpone(name, ARGV[arg + 4], delay, ARGV[arg + 5])
      else
        redis.call('XADD', KEYS[7 + box], '*', 'e', ARGV[arg + 5])
        if not activated[box] then activate(box, name) end
      end
      own[KEYS[mark]] = true
      room[box] = room[box] - 1
      accepted = accepted + 1
      outcome = '+'
    else
      outcome = known(KEYS[mark], digest)
    end
  end
  outcomes[#outcomes + 1] = outcome
  arg = arg + 5
end

if accepted > 0 then
  redis.call('HINCRBY', stats, 'depth', accepted)
  redis.call('HINCRBY', stats, 'accepted', accepted)
end
return table.concat(outcomes)
