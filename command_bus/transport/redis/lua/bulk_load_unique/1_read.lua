-- bulk_load_unique: accept a chunk of a dispatch as bulk_load.lua does, where commands have unique keys: each
-- is put in line, folded into the one that holds its key, or replaces it.
--
-- uses: record, newer, lone, holds, open_line(line_flow, line_runs, line_turns, line_served, line), admission
-- uses: outcomes, delayed, postpone, unique, events, unstarted, unique_line, loading
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   stats     hash of counters
-- KEYS[4]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[5]   later     hash: mailbox name -> number of delayed commands (see shared/delayed.lua)
-- KEYS[6]   record    hash: the dispatch
-- KEYS[7]   ids       hash: command id -> check; what was accepted or folded of the version that is open
-- KEYS[8]   last      hash: entity -> sequence number of its last command, where rows have one
-- KEYS[9]   watched   hash: entity type -> number of events to keep (see shared/events.lua)
-- KEYS[10]  arrivals  stream of what senders did to commands of watched types
-- KEYS[11]  homes     hash: entity -> the task that writes its commands
-- KEYS[12]  lone      hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[13]  flows     hash: what classes and shares have used (see shared/line.lua); this and the next two
--                     may not exist
-- KEYS[14]  turns     sorted set of flows, by their virtual time
-- KEYS[15]  line      sorted set of the places of entities that wait
-- KEYS[16]  unique    hash: key -> the command that holds it (see shared/unique.lua)
-- KEYS[17]  due       sorted set of what becomes due, by ms
-- KEYS[18]  delayed   hash: command id -> mailbox name, newline, entry (see shared/entry_text.lua)
-- KEYS[19]  outcomes  stream of outcomes of the dispatch
-- KEYS[20…] the mailboxes; then for each stander that is named its mark, its caller's inbox, and its
--           dispatch's record and stream of outcomes (the mailbox where there is none)
-- ARGV[1]   version   that is loaded
-- ARGV[2]   limit     of commands in this shard; perhaps a colon and the limit of mailboxes with work
-- ARGV[3]   room      of commands in one mailbox
-- ARGV[4]   prefix    length of the mailbox keys' prefix: what follows it is the mailbox's name
-- ARGV[5]   ttl       ms for which ids are kept: as long as the record, which each task renews that opens it
-- ARGV[6]   sequenced '1' if the commands have sequence numbers
-- ARGV[7]   boxes     number of mailboxes
-- ARGV[8]   named     number of standers that are named
-- ARGV[9]   checks    four bytes for each command, of its payload
-- ARGV[10]  home      the task that writes, as run|partition; empty: any task may write any entity
-- ARGV[11]  strict    '1' if an entity that another partition of the same run has begun is refused
-- ARGV[12]  area      flows of the commands that have a class or a tenant, as bulk_load.lua takes them; empty
--                     if none has
-- ARGV[13]  own       how a stander says that this dispatch keeps its outcome (see shared/unique.lua)
-- ARGV[14]  reply ttl in ms, of an inbox
-- ARGV[15…] for each command: number of its mailbox, envelope, command id, sequence number, entity; its key
--           (empty if it has none) and how it folds: `mode delay window longest name`, where the mode is as
--           in enqueue_unique, the three are ms (0 if there is none), and the name is the wire name; then for
--           each stander that is named: its key, the stander, its reply, and ms for which its mark is kept (0
--           if it has none); then the entities that are new to the task
--
-- returns as bulk_load, with the admissions u folded, r replaced another, x this user may not replace; behind
-- them how many of the new entities
--         others have begun, a space, and for each u and r the length of the other's command id, a colon and
--         that id. Or ~ and in the same form for each stander that has to be named its key and the stander:
--         nothing was changed, and the loader asks again.
--
-- A stander has to be named if it may be replaced, and has a mark, a caller or another dispatch. What is
-- decided of a command is noted under its id in the same step, also that it was folded: it is never decided
-- again. Commands of these chunks are never lone ones. The first write is an XADD or HSET that a server at
-- its memory limit refuses. After the first write nothing fails.

local ready, active, stats, paused, delayed_counts, record, ids, last =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local homes, lone, flows, unique, due, delayed, outcomes =
  KEYS[11], KEYS[12], KEYS[13], KEYS[16], KEYS[17], KEYS[18], KEYS[19]
local version, space, prefix, sequenced = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[6] == '1'
local boxes, named, checks = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
local first_box, head, stride, keys_named, words_named = 19, 14, 7, 4, 4
local call, sub, match = redis.call, string.sub, string.match

local closed = closed_version(record, version)
if closed then return closed end

local count = #checks / 4
local behind = head + stride * count
local asked, entities = {}, {}
for i = 1, count do
  local at = head + stride * (i - 1)
  asked[i], entities[i] = ARGV[at + 3], ARGV[at + 5]
end
local known = call('HMGET', ids, unpack(asked))
local numbers = sequenced and last_numbers(last, entities) or {}
local fresh, shared = begun_entities(homes, ARGV[10], ARGV[11] == '1', behind + words_named * named + 1)
if type(fresh) == 'string' then return fresh end
local own = (tonumber(call('HMGET', record, 'keep_ms')[1]) or 0) > 0 and ARGV[13] or ''

local names, room, held, drained, many = {}, {}, {}, {}, {}
-- Two: none of them is a lone one.
for box = 1, boxes do names[box], many[box] = sub(KEYS[first_box + box], prefix + 1), 2 end
local records = call('HMGET', active, unpack(names))
for box, name in ipairs(names) do
  held[box], drained[box] = holds_of(paused, name)
  local length = redis.pcall('XLEN', KEYS[first_box + box])
  local later = tonumber(call('HGET', delayed_counts, name)) or 0
  room[box] = type(length) == 'number' and space - length - later - (is_lone(records[box]) and 1 or 0)
end
local limit, newcomers = limits_in(ARGV[2], active)
local free = limit - (tonumber(call('HGET', stats, 'depth')) or 0)
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- The commands that hold the keys, and those that were named.

local told_of = {}
for i = 1, named do
  local at, key = behind + words_named * (i - 1), first_box + boxes + keys_named * (i - 1)
  local told = {stander = ARGV[at + 2], reply = ARGV[at + 3], keep = ARGV[at + 4], inbox = KEYS[key + 2]}
  if told.keep ~= '0' then told.mark = KEYS[key + 1] end
  if keeps_end(told.stander) then told.record, told.outcomes = KEYS[key + 3], KEYS[key + 4] end
  told_of[ARGV[at + 1]] = told
end

-- Return whether a stander's keys are not those of this dispatch, and were not named.
local function is_stranger(key, stander)
  local _, _, _, flags, waits = parse_stander(stander)
  if not flags or (waits == '' and (flags == '' or flags == own)) then return false end
  return not told_of[key] or told_of[key].stander ~= stander
end

local standers, asks = {}, {'~'}
for i = 1, count do
  local at = head + stride * (i - 1)
  local key, mode = ARGV[at + 6], sub(ARGV[at + 7], 1, 1)
  if key ~= '' and not standers[key] then standers[key] = call('HGET', unique, key) or '' end
  local stander = standers[key]
  if mode == MODE.LATEST and not known[i] and not asks[key] and is_stranger(key, stander) then
    if look_at_stander(stander, records[tonumber(ARGV[at + 1])], delayed, now, mode) == 'waits' then
      asks[key] = true
      asks[#asks + 1] = #key .. ':' .. key .. #stander .. ':' .. stander
    end
  end
end
if #asks > 1 and not may_not_replace(KEYS[first_box + 1]) then return table.concat(asks) end
