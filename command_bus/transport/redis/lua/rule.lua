-- rule: write what a limit allows, as code declares it or as an operator puts it, in one shard.
--
-- KEYS[1]   rules     hash: what limits apply (see shared/limits.lua); besides, d:<rule> what code declares,
--                     p:<rule> what an operator put
-- KEYS[2]   ready     stream of activations
-- KEYS[3]   due       sorted set of what becomes due, by ms
-- KEYS[4]   places    sorted set: the queues and places of limits
-- ARGV[1]   verb      declare, put, keyed
-- ARGV[2]   rule      its name: bus, type:<entity type>, entity:<entity type>, name:<name>; of keyed the
--                     entity type
-- ARGV[3]   text      us per token|burst|places|rate|per|revision; empty to take back what was put; of keyed
--                     the names
--
-- returns 'written', 'same', 'older' (a higher revision is declared) or 'differs' (another text is declared
-- with the same revision)

local rules, ready, due, places = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local verb, rule, text = ARGV[1], ARGV[2], ARGV[3]

local function revision_of(declared)
  return tonumber(string.match(declared, '(%d+)$')) or 0
end

if verb == 'keyed' then
  redis.call('HSET', rules, 'keyed:' .. rule, text)
  return 'written'
end
local field = (verb == 'put' and 'p:' or 'd:') .. rule
local before = redis.call('HGET', rules, field)
if before == text or (text == '' and not before) then return 'same' end
if verb == 'declare' and before then
  if revision_of(before) > revision_of(text) then return 'older' end
  if revision_of(before) == revision_of(text) then return 'differs' end
end
if text == '' then
  redis.call('HDEL', rules, field)
else
  redis.call('HSET', rules, field, text)
end
local now_in_force = redis.call('HGET', rules, 'p:' .. rule) or redis.call('HGET', rules, 'd:' .. rule)
if now_in_force then
  redis.call('HSET', rules, rule, now_in_force)
else
  redis.call('HDEL', rules, rule)
end

-- Who waits for it is looked at again, scope by scope.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local from, woken = '[q\n' .. rule, 0
while woken < 10000 do
  local first = redis.call('ZRANGEBYLEX', places, from, '+', 'LIMIT', 0, 1)[1]
  local scope = first and string.match(first, '^q\n([^\n]*)\n')
  if not scope or (scope ~= rule and string.sub(scope, 1, #rule + 1) ~= rule .. ':') then break end
  redis.call('ZADD', due, now, 'l:' .. scope)
  from, woken = '[q\n' .. scope .. '\11', woken + 1
end
if woken > 0 then redis.pcall('XADD', ready, '*', 'tick', '1') end
return 'written'
