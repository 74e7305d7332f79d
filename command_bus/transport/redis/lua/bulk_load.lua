-- bulk_load: accept a chunk of a dispatch into its mailboxes, in order, as far as its version and the limits
-- allow. A command with a unique key is put in line, folded into the one that holds its key, or replaces it.
--
-- uses: record, newer, lone, holds, open_line(line_flow, line_runs, line_turns, line_served, line)
-- uses: alone, admission, delayed, postpone, envelope_id, events, accept, loading
-- uses: open_unique(outcomes, unique, unstarted, unique_line)
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   stats     hash of counters
-- KEYS[4]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[5]   later     hash: mailbox name -> number of delayed commands (see shared/delayed.lua)
-- KEYS[6]   record    hash: the dispatch
-- KEYS[7]   ids       hash: command id -> check; what was decided of the version that is open
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
-- KEYS[18…] the mailboxes; if commands have unique keys, `unique`, the stream of outcomes of the dispatch,
--           and four keys for each command that is named, as enqueue.lua has them
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
-- ARGV[13]  named     if commands have unique keys: how many commands are named that hold some, ms of a reply
--                     in an inbox, and how it is stored that this dispatch keeps an outcome, each with a
--                     space; else empty
-- ARGV[14…] envelopes; then, with sequence numbers, those, and the entity of each run; then, with unique
--           keys, for each command its key and how it folds (both empty if it has none), and for each that is
--           named four arguments, as enqueue.lua has them; then the entities that are new to the task. Few
--           and long arguments: each costs 0.2 us
--
-- returns 'done' if the version is committed, 'gone' if it is not open, 'split|', the partition, '|' and the
-- entity that it has begun, if
--         that is refused; else one character per command as enqueue.lua does (and behind them how many of
--         the new entities others have begun): + accepted, = duplicate, ! same id with another payload, e
--         mailbox full, t shard full, n too many mailboxes have work, p an earlier one was refused, d being
--         drained, w the mailbox takes nothing, s not behind the entity's last sequence number, u folded, r
--         replaced another, x this user may not replace; if commands have unique keys, behind that a space,
--         and what enqueue.lua has behind its admissions. Or ~, as enqueue.lua
--
-- The first write is one that a server at its memory limit refuses, so that it refuses the whole chunk with
-- nothing done. A fault of one mailbox is answered to its commands alone. What was accepted or folded is
-- noted under its id, and never decided again. After the first write nothing fails.

local active, stats, record, ids, last = KEYS[2], KEYS[3], KEYS[6], KEYS[7], KEYS[8]
local prefix, sequenced, runs, checks = tonumber(ARGV[4]), ARGV[6] == '1', ARGV[8], ARGV[9]
local homes, flows, first_box, head = KEYS[11], KEYS[13], 17, 13
local call, byte, sub = redis.call, string.byte, string.sub

local closed = closed_version(record, ARGV[1])
if closed then return closed end

-- What the arguments name: envelopes, then sequence numbers, unique keys and entities.

local count = #checks / 4
local asked, boxes, entities, entity_of, many = {}, {}, {}, {}, {}
for i = 1, count do asked[i] = id_in(ARGV[head + i] or '') or '' end
local known = call('HMGET', ids, unpack(asked))
local named, reply_ttl, own = string.match(ARGV[13], '^(%d+) (%d+) (.*)$')
named = tonumber(named)
for run = 1, #runs / 4 do
  local high, low, rows, few = byte(runs, 4 * run - 3, 4 * run)
  local box, from = 256 * high + low, #boxes
  rows = 256 * rows + few
  -- Or a few bytes would keep the server busy.
  if from + rows > count then return {err = 'ERR the runs name more commands than there are'} end
  if sequenced then entities[run] = ARGV[head + 2 * count + run] end
  for i = from + 1, from + rows do boxes[i], entity_of[i] = box, entities[run] end
  many[box] = named and 2 or (many[box] or 0) + rows  -- two: none of them is a lone one
end
local numbers = sequenced and last_numbers(last, entities)
local keyed = head + count + (sequenced and count + #runs / 4 or 0)
local behind = named and keyed + 2 * count + 4 * named or keyed
local fresh, shared = begun_entities(homes, ARGV[10], ARGV[11] == '1', behind + 1)
if type(fresh) == 'string' then return fresh end

local names, room = {}, {}
for box = 1, #KEYS - first_box - (named and 2 + 4 * named or 0) do
  names[box], room[box] = sub(KEYS[first_box + box], prefix + 1), tonumber(ARGV[3])
end
local batch = {
  ready = KEYS[1], active = active, stats = stats, due = KEYS[16], delayed = KEYS[17], later = KEYS[5],
  paused = KEYS[4], watched = KEYS[9], arrivals = KEYS[10], lone = KEYS[12], flows = flows, turns = KEYS[14],
  line = KEYS[15], first_box = first_box, names = names, room = room, suspects = tonumber(ARGV[7]),
  many = many, limit = ARGV[2], flow_of = flow_reader(ARGV[12], flows),
}
open_batch(batch)
local commands, unique = {}, nil
if named then
  local key = first_box + #names + 1
  if (tonumber(call('HMGET', record, 'keep_ms')[1]) or 0) == 0 then own = '' end
  unique = open_unique(batch, {unique = KEYS[key], record = record, outcomes = KEYS[key + 1]}, own, reply_ttl)
  batch.unique = unique
  for i = 1, count do
    local key = ARGV[keyed + 2 * i - 1]
    if key ~= '' and not known[i] then commands[i] = unique.read(ARGV[head + i], key, ARGV[keyed + 2 * i]) end
  end
  unique.read_named(keyed + 2 * count + 1, key + 2, named)
  local asks = unique.asks(commands, boxes, count)
  if asks then return asks end
end

local admissions, noted, reached, seen = {}, {}, {}, {}
local repeated, room, refused, judge, accept = 0, batch.room, batch.refused, batch.judge, batch.accept
local first, usual, arguments = 1, not named and batch.usual, ARGV
if usual and not sequenced then
  for i = 1, #boxes do
    local box, id = boxes[i], asked[i]
    if known[i] or seen[id] or not room[box] then break end
    local admission, fault = usual(box, arguments[head + i])
    if fault then return fault end
    if not admission then break end  -- from here on each is looked at
    admissions[i], first = admission, i + 1
    if not room[box] then break end
    local check = sub(checks, 4 * i - 3, 4 * i)
    seen[id], noted[2 * i - 1], noted[2 * i] = check, id, check
  end
end
for i = first, #boxes do
  local box, entity, id, check = boxes[i], entity_of[i], asked[i], sub(checks, 4 * i - 3, 4 * i)
  local before, admission, fault = known[i] or seen[id], nil, nil
  if before then
    admission = before == check and '=' or '!'
    repeated = repeated + 1
  elseif not room[box] then
    admission = ADMISSION.WRONG_TYPE
  elseif sequenced and tonumber(ARGV[head + count + i]) <= numbers[entity] then
    admission = ADMISSION.OUT_OF_SEQUENCE
  else
    if usual then admission, fault = usual(box, arguments[head + i]) end
    if not admission and not fault then
      local refusal = judge(box, commands[i])
      if not refusal then
        admission, fault = accept(box, i, arguments[head + i], id, 0, commands[i])
      elseif refusal == ADMISSION.FOLDED then
        unique.fold(commands[i])
      else
        refused[box] = true
      end
      admission = refusal or admission
    end
    if fault then return fault end
    if room[box] and not refused[box] then
      seen[id], noted[#noted + 1], noted[#noted + 2] = check, id, check
      if sequenced then
        numbers[entity] = tonumber(ARGV[head + count + i])
        reached[#reached + 1], reached[#reached + 2] = entity, ARGV[head + count + i]
      end
    end
  end
  admissions[i] = admission
end

local accepted, superseded = batch.finish()
note_entities(homes, fresh, last, reached, ARGV[5])
if #noted > 0 then
  call('HSET', ids, unpack(noted))
  call('PEXPIRE', ids, ARGV[5])
end
for field, many in pairs({
  added = accepted, replaced = superseded, folded = batch.folded, duplicates = repeated,
}) do
  if many > 0 then redis.pcall('HINCRBY', record, field, many) end
end
local others = unique and ' ' .. table.concat(unique.others) or ''
return table.concat(admissions) .. (shared > 0 and shared or '') .. others
