-- advance: settle the commands that were running and start the next of each entity, for a batch of entities.
--
-- KEYS[1]   ready     stream of activations; its pending entries are the leases
-- KEYS[2]   active    hash: mailbox name -> state|activation|fence|message|attempt|first start in ms|holder
-- KEYS[3]   fence     the shard's highest fence
-- KEYS[4]   stats     hash of counters
-- KEYS[5]   due       sorted set of what becomes due, by ms
-- KEYS[6]   paused    hash: mailbox name -> why
-- KEYS[7]   parked    hash: mailbox name -> id of its dead letter
-- KEYS[8]   dead      stream of dead letters
-- KEYS[9…]  for each step its mailbox; a step that settles adds the mark, one that replies the inbox, one of a dispatch that keeps
--           outcomes the dispatch's record and its stream of outcomes
-- ARGV[1]   group     of consumers
-- ARGV[2]   owner     who asks: the consumer's name
-- ARGV[3]   reply ttl in ms, of an inbox
-- ARGV[4…]  for each step: mailbox name, activation, holder, fence, message, verb, follow; then by verb
--           take    -
--           done    mark ttl in ms, mark, reply, outcome
--           deny    mark ttl in ms, mark, reply, outcome                               (done, counted as rejected)
--           lapse   mark ttl in ms, mark, reply, outcome                               (done, counted as expired)
--           bury    mark ttl in ms, mark, reply, outcome, record, raw envelope
--           park    mark ttl in ms, mark, reply, outcome, record, raw envelope   (the mark has no ttl while it is parked)
--           retry   delay in ms, '1' if the attempt counts
--           back    '1' if the attempt counts
--           follow: stay (start the next), yield (only if nobody else waits), leave (start none)
--
-- returns now in ms, then for each step one of
--         {'start', fence, message, attempt, first start in ms, field, value …}   running now, under this lease
--         {'idle'} {'yield'} {'wait'} {'stop'}                                      the lease is given up
--         {'gone'}                                                                  the lease is not ours: nothing was changed
--         {'error', text}                                                           a key of this entity is of another type
--
-- Asked again by the same holder (a lost reply), a step whose effect is there already answers with the present state. The holder
-- is one lease of one worker, not the worker: an activation that it lost sight of and meets again is nothing that it may start. The
-- first write frees memory (or nothing), so that a server at its limit still lets work drain.

local ready, active, fence_key, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local due, paused, parked, dead = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local group, owner, reply_ttl = ARGV[1], ARGV[2], ARGV[3]

redis.call('XACK', ready, group, '0-0')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_text = string.format('%.0f', now)
local fence = math.max(tonumber(redis.call('GET', fence_key) or '0'), time[1] * 1000000 + time[2] - 1)
local any_paused = redis.call('EXISTS', paused) == 1
local started, settled = 0, 0
local counts = {rejected = 0, expired = 0, buried = 0, dead = 0, retried = 0}
local others_wait = nil
local taken, touched = {}, {}
local keeps, noted = {}, {}
local key, arg = 8, 3

local function somebody_waits()
  if others_wait == nil then
    local pending = redis.pcall('XPENDING', ready, group)  -- the group may be gone: then nobody reads
    others_wait = not pending.err and redis.call('XLEN', ready) > tonumber(pending[1])
  end
  return others_wait
end

local function release(activation)
  redis.call('XACK', ready, group, activation)
  redis.call('XDEL', ready, activation)
end

local function close(name, box, activation)
  release(activation)
  redis.call('DEL', box)
  redis.call('HDEL', active, name)
  return {'idle'}
end

local function rest(name, activation, state, attempt, first)
  release(activation)
  redis.call('HSET', active, name, state .. '||||' .. attempt .. '|' .. first .. '|')
end

local function requeue(name, activation, attempt, first)
  release(activation)
  local id = redis.call('XADD', ready, '*', 'e', name)
  redis.call('HSET', active, name, 'r|' .. id .. '|||' .. attempt .. '|' .. first .. '|')
  return {'yield'}
end

local function delivery(fence_text, attempt, first, entry)
  local answer = {'start', fence_text, entry[1], attempt, first}
  local fields = entry[2]
  for i = 1, #fields do answer[5 + i] = fields[i] end
  return answer
end

local function start(name, box, activation, holder, attempt, first, follow)
  local head = redis.call('XRANGE', box, '-', '+', 'COUNT', 1)[1]
  if not head then return close(name, box, activation) end
  if any_paused and redis.call('HEXISTS', paused, name) == 1 then
    rest(name, activation, 's', attempt, first)
    return {'stop'}
  end
  if follow == 'leave' or (follow == 'yield' and somebody_waits()) then
    return requeue(name, activation, attempt, first)
  end
  fence = fence + 1
  started = started + 1
  if first == '0' then first = now_text end
  attempt = string.format('%d', tonumber(attempt) + 1)
  local fence_text = string.format('%.0f', fence)
  redis.call('HSET', active, name, table.concat({'h', activation, fence_text, head[1], attempt, first, holder}, '|'))
  return delivery(fence_text, attempt, first, head)
end

local function settle(box, message)
  settled = settled + redis.call('XDEL', box, message)
end

local function remember(mark, ttl, value)
  if tonumber(ttl) > 0 then
    redis.call('SET', mark, value, 'PX', ttl)
  else
    redis.call('DEL', mark)
  end
end

local function push(extra)
  if extra.inbox and type(redis.pcall('LPUSH', extra.inbox, extra[3])) == 'number' then touched[extra.inbox] = true end
end

-- Keep the outcome of a dispatch's command, as long and as many as its record says; a dispatch that is forgotten keeps none.
local function note(extra)
  if not extra.outcomes then return end
  local keep = keeps[extra.record]
  if keep == nil then
    keep = redis.pcall('HMGET', extra.record, 'keep_ms', 'keep_max')
    keeps[extra.record] = keep
  end
  if not keep[1] or keep[1] == '0' then return end
  local kept = redis.pcall('XADD', extra.outcomes, 'MAXLEN', '~', keep[2], '*', 'r', extra[4])
  if type(kept) == 'string' then noted[extra.outcomes] = tonumber(keep[1]) end
end

local function letter(name, record, raw, is_parked)
  counts.dead = counts.dead + 1
  return redis.call('XADD', dead, '*', 'r', record, 'e', raw, 'm', name, 'p', is_parked)
end

local function wait_for_retry(name, activation, delay, attempt, first)
  rest(name, activation, 'w', attempt, first)
  local at = now + tonumber(delay)
  local head = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  redis.call('ZADD', due, at, 'r:' .. name)
  if not head[2] or at < tonumber(head[2]) then redis.call('XADD', ready, '*', 'tick', '1') end
  counts.retried = counts.retried + 1
  return {'wait'}
end

-- What each verb does to the command that runs, once the lease is proved.
local verbs = {}

function verbs.done(name, box, activation, holder, message, follow, extra)
  settle(box, message)
  remember(extra.mark, extra[1], extra[2])
  push(extra)
  note(extra)
  return start(name, box, activation, holder, '0', '0', follow)
end

function verbs.deny(...)
  counts.rejected = counts.rejected + 1
  return verbs.done(...)
end

function verbs.lapse(...)
  counts.expired = counts.expired + 1
  return verbs.done(...)
end

function verbs.bury(name, box, activation, holder, message, follow, extra)
  redis.call('XLEN', box)  -- raises if it is no stream: the letter must not be written again with each try
  letter(name, extra[5], extra[6], '0')
  counts.buried = counts.buried + 1
  settle(box, message)
  remember(extra.mark, extra[1], extra[2])
  push(extra)
  note(extra)
  return start(name, box, activation, holder, '0', '0', follow)
end

function verbs.park(name, box, activation, holder, message, follow, extra, attempt, first)
  redis.call('HSET', parked, name, letter(name, extra[5], extra[6], '1'))
  rest(name, activation, 's', attempt, first)
  redis.call('SET', extra.mark, extra[2])
  push(extra)
  note(extra)
  return {'stop'}
end

function verbs.retry(name, box, activation, holder, message, follow, extra, attempt, first)
  if extra[2] == '0' then attempt = string.format('%d', tonumber(attempt) - 1) end
  return wait_for_retry(name, activation, extra[1], attempt, first)
end

function verbs.back(name, box, activation, holder, message, follow, extra, attempt, first)
  if extra[1] == '0' then attempt = string.format('%d', math.max(tonumber(attempt) - 1, 0)) end
  return requeue(name, activation, attempt, first)
end

local extras = {take = 0, done = 4, deny = 4, lapse = 4, bury = 6, park = 6, retry = 2, back = 1}
local marked = {done = true, deny = true, lapse = true, bury = true, park = true}

local function perform(name, box, activation, holder, token, message, verb, follow, extra)
  local record = redis.call('HGET', active, name)
  if not record then return {'gone'} end
  local state, held_by, held_fence, held_message, attempt, first, held_for =
    string.match(record, '^(%a)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|(.*)$')
  if held_by ~= activation then return {'gone'} end
  if state == 'r' then
    if verb == 'take' then
      taken[#taken + 1] = activation
      return start(name, box, activation, holder, attempt, first, follow)
    elseif verb == 'back' and token == '' then
      return requeue(name, activation, attempt, first)
    end
    return {'gone'}
  end
  if state ~= 'h' then return {'gone'} end
  if verb ~= 'take' and token == held_fence and message == held_message then
    return verbs[verb](name, box, activation, holder, message, follow, extra, attempt, first)
  end
  if held_for ~= holder then return {'gone'} end
  local running = redis.call('XRANGE', box, held_message, held_message)[1]
  if not running then return {'gone'} end
  return delivery(held_fence, attempt, first, running)
end

local answers = {now_text}
while arg < #ARGV do
  local name, activation, holder, token, message, verb, follow =
    ARGV[arg + 1], ARGV[arg + 2], ARGV[arg + 3], ARGV[arg + 4], ARGV[arg + 5], ARGV[arg + 6], ARGV[arg + 7]
  arg = arg + 7
  key = key + 1
  local box = KEYS[key]
  local extra = {}
  for i = 1, extras[verb] do extra[i] = ARGV[arg + i] end
  arg = arg + extras[verb]
  if marked[verb] then
    key = key + 1
    extra.mark = KEYS[key]
  end
  if marked[verb] and extra[3] ~= '' then
    key = key + 1
    extra.inbox = KEYS[key]
  end
  if marked[verb] and extra[4] ~= '' then
    key = key + 2
    extra.record, extra.outcomes = KEYS[key - 1], KEYS[key]
  end
  local done, answer = pcall(perform, name, box, activation, holder, token, message, verb, follow, extra)
  answers[#answers + 1] = done and answer or {'error', type(answer) == 'table' and answer.err or tostring(answer)}
end

for outcomes, ms in pairs(noted) do
  redis.call('XTRIM', outcomes, 'MINID', '~', string.format('%.0f', now - ms))
  redis.call('PEXPIRE', outcomes, ms)
end
for inbox in pairs(touched) do redis.call('PEXPIRE', inbox, reply_ttl) end
if #taken > 0 then
  local claim = {'XCLAIM', ready, group, owner, '0'}
  for i = 1, #taken do claim[5 + i] = taken[i] end
  claim[#claim + 1] = 'JUSTID'
  redis.pcall(unpack(claim))  -- the group may be gone: what has started has started
end
if started > 0 then redis.call('SET', fence_key, string.format('%.0f', fence)) end
if settled > 0 then
  redis.call('HINCRBY', stats, 'depth', -settled)
  redis.call('HINCRBY', stats, 'settled', settled)
end
for name, count in pairs(counts) do
  if count > 0 then redis.call('HINCRBY', stats, name, count) end
end
return answers
