-- schedule_change: change records of schedules, each only if it is what is expected.
--
-- uses: memory_limit, agenda, events, incarnation
--
-- KEYS[1]  ready      stream of activations
-- KEYS[2]  schedules  hash: name -> record, opaque
-- KEYS[3]  due        sorted set of what becomes due, by ms
-- KEYS[4]  stats      hash of counters, with the shard's incarnation
-- KEYS[5]  watched    hash: entity type -> number of events to keep (see shared/events.lua)
-- KEYS[6]  events     stream of what happened to commands of watched types
-- ARGV[1]  group      of consumers
-- ARGV[2]  shard      its incarnation, as it was read
-- ARGV[3…] for each schedule: its name; the record that is expected, empty: none; the new one, empty: none;
--          when it is due in ms, '-' never, '=' as before; its events, a line each: kind, space, detail
--
-- returns a character per schedule: 1 it is now as asked, 0 it is another record, and was left alone; 'gone'
-- if the shard is of
--         another incarnation
--
-- Asked again, it answers the same, and tells nothing twice. A new earliest time is told to the workers by a
-- tick.

local ready, schedules, due, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

-- Set or take the time of a schedule, and count those that have one.

local function plan(name, at)
  local member = 's:' .. name
  local before = tonumber(redis.call('ZSCORE', due, member) or '')
  if at == '-' then
    if redis.call('ZREM', due, member) == 1 then redis.pcall('HINCRBY', stats, 'scheduled', -1) end
  elseif at ~= '=' and before ~= tonumber(at) then
    set_due(due, ready, member, at)
    if not before then redis.pcall('HINCRBY', stats, 'scheduled', 1) end
  end
end

-- Count and publish what a change is about.
local function tell(name, told, publish)
  for kind, detail in string.gmatch(told, '(%l+) ?([^\n]*)') do
    if kind == 'missed' then redis.pcall('HINCRBY', stats, 'missed', detail) end
    if kind == 'skipped' then redis.pcall('HINCRBY', stats, 'skipped', 1) end
    if publish then publish(kind, '@schedules:' .. name, '', '', '', '', detail) end
  end
end

if is_of_another_time(stats, ARGV[2]) then return 'gone' end
local answers, growing = {}, false
for arg = 3, #ARGV, 5 do growing = growing or ARGV[arg + 1] == '' and ARGV[arg + 2] ~= '' end
if not growing then pass_memory_limit(ready, ARGV[1]) end  -- a full server takes no new schedule
local publish = redis.call('EXISTS', KEYS[5]) == 1 and publisher(KEYS[5], KEYS[6])
for arg = 3, #ARGV, 5 do
  local name, before, after, at = ARGV[arg], ARGV[arg + 1], ARGV[arg + 2], ARGV[arg + 3]
  local now = redis.call('HGET', schedules, name) or ''
  local same = now == before or now == after
  if same and after == '' then
    redis.call('HDEL', schedules, name)
    plan(name, '-')
  elseif same then
    if now ~= after then redis.call('HSET', schedules, name, after) end
    plan(name, at)
  end
  if same and now ~= after then tell(name, ARGV[arg + 4], publish) end
  answers[#answers + 1] = same and '1' or '0'
end
return table.concat(answers)
