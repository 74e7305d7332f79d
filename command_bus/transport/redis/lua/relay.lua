-- relay: take follow-ups that were written for this shard in another one, each of them once.
--
-- uses: incarnation, memory_limit, record, newer, lone, holds
-- uses: open_line(line_flow, line_runs, line_turns, line_served, line)
-- uses: alone, put_one, delayed, postpone, arrive, deliver, events
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   lone      hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[4]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[5]   due       sorted set of what becomes due, by ms
-- KEYS[6]   delayed   hash: command id -> mailbox name, newline, entry (see shared/entry_text.lua)
-- KEYS[7]   later     hash: mailbox name -> number of delayed commands (see shared/delayed.lua)
-- KEYS[8]   stats     hash of counters
-- KEYS[9]   relayed   hash: g the generation, c and a command id -> the entry from which it was taken
-- KEYS[10]  watched   hash: entity type -> number of events to keep (see shared/events.lua)
-- KEYS[11]  events    stream of what happened to commands of watched types
-- KEYS[12]  flows     hash: what classes and shares have used (see shared/line.lua); this and the next two
--                     may not exist
-- KEYS[13]  turns     sorted set of flows, by their virtual time
-- KEYS[14]  line      sorted set of the places of entities that wait
-- KEYS[15]  suspended  hash: mailbox name -> the durable command that waits (see shared/arrive.lua)
-- KEYS[16…] for each entry its mailbox, and its mark or the side record that it is for (see
--           shared/arrive.lua)
-- ARGV[1]   group       of consumers
-- ARGV[2]   generation  that an earlier call returned; empty: none is taken
-- ARGV[3]   floor       the first entry that stands in the other shard's stream
-- ARGV[4]   incarnation  of this shard that the worker has read, see shared/incarnation.lua
-- ARGV[5…]  for each entry its id, its text (see shared/deliver.lua), the ms at which it takes its place, 0
--           for at once, its envelope or outcome, and its mark, or the child and call of an outcome
--
-- returns the generation with which the next call is believed; nil if this one was not: another worker has
-- called since; 'gone' if the shard is of
--         another incarnation: the entries were for the namespace that was deleted
--
-- A worker asks for a generation, then reads the other shard's stream, then brings what it has read. So a
-- worker that is believed read after all that were believed before. What was taken is remembered by its
-- command id while its entry may still stand there: ids of entries may come again, if that shard's server was
-- replaced by one whose clock is behind.

local ready, active, lone, paused, due, delayed, later =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local stats, relayed, floor = KEYS[8], KEYS[9], ARGV[3]
if is_of_another_time(stats, ARGV[4]) then return 'gone' end
pass_memory_limit(ready, ARGV[1])
if ARGV[2] == '' then
  local next_generation = redis.pcall('HINCRBY', relayed, RELAYED.GENERATION, 1)
  if type(next_generation) == 'number' then return next_generation end
  -- No number of ours: no worker with a generation is believed.
  redis.call('HDEL', relayed, RELAYED.GENERATION)
  return redis.call('HINCRBY', relayed, RELAYED.GENERATION, redis.call('TIME')[1])
end
if redis.call('HGET', relayed, RELAYED.GENERATION) ~= ARGV[2] then return false end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local publish = redis.call('EXISTS', KEYS[10]) == 1 and publisher(KEYS[10], KEYS[11])
local queue_up = redis.call('EXISTS', KEYS[12]) == 1
  and open_line(ready, active, KEYS[12], KEYS[13], KEYS[14])
local keys = {ready = ready, active = active, lone = lone, paused = paused, due = due, delayed = delayed,
  later = later}
keys.suspended, keys.now = KEYS[15], now

local taken, over = {}, {}
local fields = redis.call('HGETALL', relayed)
for i = 1, #fields, 2 do
  if fields[i] ~= RELAYED.GENERATION then
    if is_behind(floor, fields[i + 1]) then over[#over + 1] = fields[i] else taken[fields[i]] = true end
  end
end
local generation = redis.call('HINCRBY', relayed, RELAYED.GENERATION, 1)  -- the first write
if #over > 0 then redis.call('HDEL', relayed, unpack(over)) end

local accepted = 0
local key = 16
for i = 5, #ARGV, 5 do
  local _, flow, name, id = parse_follow_up(ARGV[i + 1])
  if flow == OUTCOME then  -- whatever comes again changes nothing
    deliver(keys, KEYS[key], KEYS[key + 1], ARGV[i + 1], nil, ARGV[i + 3], ARGV[i + 4], queue_up)
  elseif not taken['c' .. id] then
    if flow ~= '1' and not queue_up then  -- the first class or tenant: a line is in use
      redis.call('HSET', KEYS[12], 'c0', '0')
      queue_up = open_line(ready, active, KEYS[12], KEYS[13], KEYS[14])
    end
    local at = tonumber(ARGV[i + 2])
    if at == 0 then  -- accepted when it was written; kept, it stands by that moment
      at = waits_until(due, delayed, later, name, id, 0, tonumber(string.match(ARGV[i], '^%d+')))
    end
    local known =
      deliver(keys, KEYS[key], KEYS[key + 1], ARGV[i + 1], at or nil, ARGV[i + 3], ARGV[i + 4], queue_up)
    redis.call('HSET', relayed, 'c' .. id, ARGV[i])
    if publish and not known then publish('accepted', name, parts_sent(ARGV[i + 3]), '', '', '', '') end
    accepted = accepted + (known and 0 or 1)
  end
  key = key + 2
end
if queue_up then queue_up.finish() end
redis.pcall('HINCRBY', stats, 'depth', accepted)  -- accepted they were counted where they come from
return generation
