-- bulk_load: accept a chunk of a dispatch into its mailboxes, in order, as far as its version and the limits
-- allow.
--
-- uses: record, newer, lone, holds, open_line(line_flow, line_runs, line_turns, line_served, line), admission
-- uses: delayed, postpone, envelope_id, events, loading
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   stats     hash of counters
-- KEYS[4]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[5]   later     hash: mailbox name -> number of delayed commands (see shared/delayed.lua)
-- KEYS[6]   record    hash: the dispatch
-- KEYS[7]   ids       hash: command id -> check; what was accepted of the version that is open
-- KEYS[8]   last      hash: entity -> sequence number of its last command, where rows have one
-- KEYS[9]   watched   hash: entity type -> number of events to keep (see shared/events.lua)
-- KEYS[10]  arrivals  stream of what senders did to commands of watched types
-- KEYS[11]  homes     hash: entity -> the task that writes its commands
-- KEYS[12]  lone      hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[13]  flows     hash: what classes and shares have used (see shared/line.lua); this and the next two
--                     may not exist
-- KEYS[14]  turns     sorted set of flows, by their virtual time
-- KEYS[15]  line      sorted set of the places of entities that wait
-- KEYS[16]  due       sorted set of what becomes due, by ms
-- KEYS[17]  delayed   hash: command id -> mailbox name, newline, entry (see shared/entry_text.lua)
-- KEYS[18…] the mailboxes
-- ARGV[1]   version   that is loaded
-- ARGV[2]   limit     of commands in this shard; perhaps a colon and the limit of mailboxes with work
-- ARGV[3]   room      of commands in one mailbox
-- ARGV[4]   prefix    length of the mailbox keys' prefix: what follows it is the mailbox's name
-- ARGV[5]   ttl       ms for which ids are kept: as long as the record, which each task renews that opens it
-- ARGV[6]   sequenced '1' if the commands have sequence numbers
-- ARGV[7]   suspects  how many of the mailboxes, from the first, may be full: into the others the writer has
--                     put little since it last asked
-- ARGV[8]   runs      commands of one entity that stand together: two bytes for the number of its mailbox,
--                     two for how many they are
-- ARGV[9]   checks    four bytes for each command, of its payload
-- ARGV[10]  home      the task that writes, as run|partition; empty: any task may write any entity
-- ARGV[11]  strict    '1' if an entity that another partition of the same run has begun is refused
-- ARGV[12]  flows     of the commands that have a class or a tenant, as enqueue.lua has them behind its
--                     letters; empty if none has
-- ARGV[13…] envelopes; then, with sequence numbers, those, and the entity of each run; then the entities that
--           are new to the task. Few and long arguments: each costs 0.2 us
--
-- returns 'done' if the version is committed, 'gone' if it is not open, 'split|', the partition, '|' and the
-- entity that it has begun, if
--         that is refused; else one character per command as enqueue.lua does (and behind them how many of
--         the new entities others have begun): + accepted, = duplicate, ! same id with another payload, e
--         mailbox full, t shard full, n too many mailboxes have work, p an earlier one was refused, d being
--         drained, w the mailbox takes nothing,
--         s not behind the entity's last sequence number
--
-- The first write is an XADD, so that a server at its memory limit refuses the whole chunk with nothing done.
-- A fault of one mailbox is answered to its commands alone, and only commands that are in their mailbox are
-- noted. After the first write nothing fails.

local ready, active, stats, paused, delayed_counts, record, ids, last =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local version, space, prefix = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local sequenced, suspects, runs, checks = ARGV[6] == '1', tonumber(ARGV[7]), ARGV[8], ARGV[9]
local home, strict, homes = ARGV[10], ARGV[11] == '1', KEYS[11]
local lone, flows, due, delayed, first_box, head = KEYS[12], KEYS[13], KEYS[16], KEYS[17], 17, 12
local call, byte, sub = redis.call, string.byte, string.sub

local closed = closed_version(record, version)
if closed then return closed end

local count = #checks / 4
local asked = {}
for i = 1, count do asked[i] = id_in(ARGV[head + i]) or '' end
local known = call('HMGET', ids, unpack(asked))
local numbers = {}
if sequenced then
  local entities = {}
  for run = 1, #runs / 4 do entities[run] = ARGV[head + 2 * count + run] end
  numbers = last_numbers(last, entities)
end

local from = head + count + (sequenced and count + #runs / 4 or 0) + 1
local fresh, shared = begun_entities(homes, home, strict, from)
if type(fresh) == 'string' then return fresh end

local flow_of_command = flow_reader(ARGV[12], flows)
local any_delayed, queue_up = call('EXISTS', delayed_counts, flows) > 0, nil
if any_delayed then
  any_delayed = call('EXISTS', delayed_counts) == 1
  queue_up = call('EXISTS', flows) == 1 and open_line(ready, active, flows, KEYS[14], KEYS[15]) or nil
end
local boxes = #KEYS - first_box
local names, room = {}, {}
for box = 1, boxes do names[box] = sub(KEYS[first_box + box], prefix + 1) end
local records = boxes > 0 and call('HMGET', active, unpack(names)) or {}
for box = 1, suspects do
  local length = redis.pcall('XLEN', KEYS[first_box + box])
  if type(length) ~= 'number' then
    room[box] = false
  else
    room[box] = space - length - (is_lone(records[box]) and 1 or 0) - (any_delayed
      and tonumber(call('HGET', delayed_counts, names[box])) or 0)
  end
end
for box = suspects + 1, boxes do room[box] = space end
local held, drained = {}, {}
if call('EXISTS', paused) == 1 then
  for box = 1, boxes do held[box], drained[box] = holds_of(paused, names[box]) end
end

local limit, newcomers = limits_in(ARGV[2], active)
local free = limit - (tonumber(call('HGET', stats, 'depth')) or 0)
local admissions, noted, reached, seen, refused = {}, {}, {}, {}, {}
local accepted, repeated, i = 0, 0, 0
local many = {}
for run = 1, #runs / 4 do
  local high, low, rows, few = byte(runs, 4 * run - 3, 4 * run)
  local box = 256 * high + low
  many[box] = (many[box] or 0) + 256 * rows + few
end
local put, spoiled, finish = mailbox_writer(ready, active, lone, first_box, names, records, held, many,
  queue_up)
local publish = call('EXISTS', KEYS[9]) == 1 and publisher(KEYS[9], KEYS[10])

for run = 1, #runs / 4 do
  local high, low, many, few = byte(runs, 4 * run - 3, 4 * run)
  local box, entity, rows = 256 * high + low, sequenced and ARGV[head + 2 * count + run], 256 * many + few
  -- Or a few bytes would keep the server busy.
  if i + rows > count then return {err = 'ERR the runs name more commands than there are'} end
  for _ = 1, rows do
    i = i + 1
    local id, check = asked[i], sub(checks, 4 * i - 3, 4 * i)
    local number = sequenced and tonumber(ARGV[head + count + i])
    local before = known[i] or seen[id]
    local admission
    if before then
      admission = before == check and '=' or '!'
      repeated = repeated + 1
    elseif not room[box] then
      admission = ADMISSION.TAKES_NOTHING
    elseif drained[box] then
      admission = ADMISSION.DRAINED
    elseif refused[box] then
      admission = ADMISSION.EARLIER_REFUSED
    elseif sequenced and number <= numbers[entity] then
      admission = ADMISSION.STALE
    elseif room[box] < 1 or free < 1 or (newcomers and newcomers < 1 and not records[box]) then
      admission = room[box] < 1 and ADMISSION.MAILBOX_FULL or free < 1 and ADMISSION.SHARD_FULL
        or ADMISSION.TOO_MANY_MAILBOXES
      refused[box] = true
    else
      local envelope, idle = ARGV[head + i], not records[box]
      local at, fault = any_delayed and waits_until(due, delayed, delayed_counts, names[box], id, 0), nil
      if at then
        local entry = with_flow(envelope, flow_of_command(i))
        fault = postpone(ready, due, delayed, delayed_counts, KEYS[first_box + box], names[box], id, at,
          entry)
      else
        fault = put(box, envelope, queue_up and flow_of_command(i))
      end
      if not fault then
        admission = '+'
        accepted = accepted + 1
        room[box] = room[box] - 1
        free = free - 1
        if newcomers and idle and records[box] then newcomers = newcomers - 1 end
        seen[id] = check
        noted[2 * accepted - 1], noted[2 * accepted] = id, check
        if sequenced then
          numbers[entity] = number
          reached[2 * accepted - 1], reached[2 * accepted] = entity, ARGV[head + count + i]
        end
        if publish then publish('accepted', names[box], envelope, '', '', '', '') end
      elseif spoiled(box, fault) or accepted > 0 then
        room[box], admission = false, ADMISSION.TAKES_NOTHING
      else
        return fault  -- at the memory limit: this would have been the first write
      end
    end
    admissions[i] = admission
  end
end

finish()
note_entities(homes, fresh, last, reached, ARGV[5])
if accepted > 0 then
  call('HSET', ids, unpack(noted))
  redis.pcall('HINCRBY', stats, 'depth', accepted)  -- a counter that cannot grow must not cost the answer
  redis.pcall('HINCRBY', stats, 'accepted', accepted)
  redis.pcall('HINCRBY', record, 'added', accepted)
  call('PEXPIRE', ids, ARGV[5])
end
if repeated > 0 then redis.pcall('HINCRBY', record, 'duplicates', repeated) end
return table.concat(admissions) .. (shared > 0 and shared or '')
