-- load: accept a chunk of a dispatch into its mailboxes, in order, as far as its fence and the limits let it.
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> state
-- KEYS[3]   stats     hash of counters
-- KEYS[4]   paused    hash: mailbox name -> why
-- KEYS[5]   later     hash: mailbox name -> number of delayed commands
-- KEYS[6]   record    hash: the dispatch
-- KEYS[7]   ids       hash: command id -> check; what was accepted of the version that is open
-- KEYS[8]   last      hash: entity -> sequence number of its last command, where rows have one
-- KEYS[9…]  the mailboxes
-- ARGV[1]   version   that is loaded
-- ARGV[2]   limit     of commands in this shard
-- ARGV[3]   room      of commands in one mailbox
-- ARGV[4]   prefix    length of the mailbox keys' prefix: what follows it is the mailbox's name
-- ARGV[5]   ttl       ms for which ids are kept: as long as the record, which every task that opens it renews
-- ARGV[6]   sequenced '1' if the commands have sequence numbers
-- ARGV[7]   suspects  how many of the mailboxes, from the first, may be full: the writer has not put much into the others since it last asked
-- ARGV[8…]  for each command: index of its mailbox, id, check (of its payload), envelope; with sequence numbers also entity and number
--
-- returns 'done' if the version is committed, 'gone' if it is not open, else one character per command as enqueue.lua does:
--         + accepted, = duplicate, ! same id with another payload, e mailbox full, t shard full, p an earlier one was refused, w wrong type,
--         s not behind the entity's last sequence number
--
-- Everything is decided before the first write, so that a server at its memory limit refuses the whole chunk with nothing done.

local ready, active, stats, paused, later, record, ids, last = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local version, limit, space, prefix = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local state = redis.call('HMGET', record, 'open', 'done')
if state[2] and tonumber(state[2]) >= tonumber(version) then return 'done' end
if state[1] ~= version then return 'gone' end

local stride = ARGV[6] == '1' and 6 or 4
local count = (#ARGV - 7) / stride
local asked = {}
for i = 1, count do asked[i] = ARGV[stride * (i - 1) + 9] end
local known = redis.call('HMGET', ids, unpack(asked))
local numbers = {}
if stride == 6 then
  local entities = {}
  for i = 1, count do entities[i] = ARGV[stride * (i - 1) + 12] end
  local found = redis.call('HMGET', last, unpack(entities))
  for i = 1, count do numbers[entities[i]] = tonumber(found[i] or '-inf') end
end

local any_later = redis.call('EXISTS', later) == 1
local boxes, suspects = #KEYS - 8, tonumber(ARGV[7])
local names, room = {}, {}
for box = 1, boxes do names[box] = string.sub(KEYS[box + 8], prefix + 1) end
for box = 1, suspects do
  local length = redis.pcall('XLEN', KEYS[box + 8])
  if type(length) ~= 'number' then
    room[box] = false
  else
    room[box] = space - length - (any_later and tonumber(redis.call('HGET', later, names[box]) or '0') or 0)
  end
end
for box = suspects + 1, boxes do room[box] = space end

local free = limit - tonumber(redis.call('HGET', stats, 'depth') or '0')
local outcomes, noted, reached, seen, refused = {}, {}, {}, {}, {}
local accepted, repeated = 0, 0
for i = 1, count do
  local at = stride * (i - 1) + 8
  local box, id, check = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  local before = known[i] or seen[id]
  local outcome
  if before then
    outcome = before == check and '=' or '!'
    repeated = repeated + 1
  elseif not room[box] then
    outcome = 'w'
  elseif refused[box] then
    outcome = 'p'
  elseif stride == 6 and tonumber(ARGV[at + 5]) <= numbers[ARGV[at + 4]] then
    outcome = 's'
  elseif room[box] < 1 or free < 1 then
    outcome = room[box] < 1 and 'e' or 't'
    refused[box] = true
  else
    outcome = '+'
    accepted = accepted + 1
    room[box] = room[box] - 1
    free = free - 1
    seen[id] = check
    noted[2 * accepted - 1], noted[2 * accepted] = id, check
    if stride == 6 then
      numbers[ARGV[at + 4]] = tonumber(ARGV[at + 5])
      reached[2 * accepted - 1], reached[2 * accepted] = ARGV[at + 4], ARGV[at + 5]
    end
  end
  outcomes[i] = outcome
end

if accepted > 0 then
  redis.call('HSET', ids, unpack(noted))
  if stride == 6 then
    redis.call('HSET', last, unpack(reached))
    redis.call('PEXPIRE', last, ARGV[5])
  end
  local any_paused = redis.call('EXISTS', paused) == 1
  local active_now = redis.call('HMGET', active, unpack(names))
  for i = 1, count do
    if outcomes[i] == '+' then
      local at = stride * (i - 1) + 8
      local box = tonumber(ARGV[at])
      redis.call('XADD', KEYS[box + 8], '*', 'e', ARGV[at + 3])
      if not active_now[box] then
        active_now[box] = true
        local name = names[box]
        if any_paused and redis.call('HEXISTS', paused, name) == 1 then
          redis.call('HSET', active, name, 's||||0|0|')
        else
          redis.call('HSET', active, name, 'r|' .. redis.call('XADD', ready, '*', 'e', name) .. '|||0|0|')
        end
      end
    end
  end
  redis.call('HINCRBY', stats, 'depth', accepted)
  redis.call('HINCRBY', stats, 'accepted', accepted)
  redis.call('HINCRBY', record, 'added', accepted)
  redis.call('PEXPIRE', ids, ARGV[5])
end
if repeated > 0 then redis.call('HINCRBY', record, 'duplicates', repeated) end
return table.concat(outcomes)
