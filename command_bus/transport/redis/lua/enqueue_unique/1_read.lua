-- enqueue_unique: accept commands with unique keys, in order: each is put in line, folded into the one that
-- holds its key, or replaces it.
--
-- uses: record, newer, lone, holds, open_line(line_flow, line_runs, line_turns, line_served, line), admission
-- uses: known, outcomes, delayed, postpone, unique, events, unstarted, unique_line
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   stats     hash of counters
-- KEYS[4]   due       sorted set of what becomes due, by ms
-- KEYS[5]   delayed   hash: command id -> mailbox name, newline, entry (see shared/entry_text.lua)
-- KEYS[6]   later     hash: mailbox name -> number of delayed commands (see shared/delayed.lua)
-- KEYS[7]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[8]   last      number of the producer's last batch, a colon, and how it was answered
-- KEYS[9]   watched   hash: entity type -> number of events to keep (see shared/events.lua)
-- KEYS[10]  arrivals  stream of what senders did to commands of watched types
-- KEYS[11]  lone      hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[12]  flows     hash: what classes and shares have used (see shared/line.lua); this and the next two
--                     may not exist
-- KEYS[13]  turns     sorted set of flows, by their virtual time
-- KEYS[14]  line      sorted set of the places of entities that wait
-- KEYS[15]  unique    hash: key -> the command that holds it (see shared/unique.lua)
-- KEYS[16…] the mailboxes; then for each command its mark; of the command that holds its key the mark, the
--           inbox of its caller, and its dispatch's record and stream of outcomes (the mailbox where there is
--           none)
-- ARGV[1]   number    of this batch, growing per producer: asked again it is answered as the first time
-- ARGV[2]   again     '1' if it may have been applied before, and an earlier answer of this producer cannot
--                     have expired yet
-- ARGV[3]   ttl       ms for which the answer is kept
-- ARGV[4]   limit     of commands in this shard; perhaps a colon and the limit of mailboxes with work
-- ARGV[5]   prefix    length of the mailbox keys' prefix: what follows it is the mailbox's name
-- ARGV[6]   rooms     'commands that a mailbox may hold:number of mailboxes ' for each stretch of equal ones
-- ARGV[7]   reply ttl in ms, of an inbox
-- ARGV[8…]  for each command, no two of the same key: number of its mailbox, envelope, digest (empty without
--           a mark), command id, key; mode (f the first wins, until it is settled; s the first wins, until it
--           is started; l the latest wins); ms of delay (below zero the moment itself), window and longest
--           wait (0 if there is none); its own part of a stander, from the flags on; the stander of its key
--           as the producer knows it, empty if it knows none; for that one's caller a reply, ms for which its
--           mark is kept (0 if it has none); its flow (see shared/line.lua), 1 if it has no class or tenant
--
-- returns as enqueue.lua, with the admissions u folded, r replaced another, n this user may not replace;
-- behind them for each u and r the
--         length of the other's command id, a colon and that id. Or ~ and for each command, in the same form,
--         the stander of its key: nothing was changed, and the producer asks again with the marks and inboxes
--         of those that it replaces.
--
-- What runs, or was started and waits for a retry, is not touched. Commands with keys are never lone ones, so
-- a stander is in its mailbox or delayed. A mailbox that this empties is closed by the worker that takes its
-- activation. The first write is an XADD or HSET that a server at its memory limit refuses. After the first
-- write nothing fails.

local ready, active, stats, due, delayed, delayed_counts, paused, last =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local lone, flows, unique, first_box = KEYS[11], KEYS[12], KEYS[15], 15
local number, prefix, reply_ttl = tonumber(ARGV[1]), tonumber(ARGV[5]), ARGV[7]
local head, stride = 7, 14
local call, sub = redis.call, string.sub

local answered = call('GET', last)
if answered then
  local before, answer = string.match(answered, '^(%d+):(.*)$')
  if tonumber(before) == number then return answer end
  if tonumber(before) > number then return {err = 'STALE a later batch of this producer was answered'} end
elseif number > 1 and ARGV[2] == '1' then
  return 'gone'
end

-- Read: mailboxes, and who holds each key.

local names, room, held, drained, many = {}, {}, {}, {}, {}
for space, boxes in string.gmatch(ARGV[6], '(%d+):(%d+) ') do
  for box = #names + 1, #names + boxes do
    names[box], room[box], many[box] = sub(KEYS[first_box + box], prefix + 1), tonumber(space), 2  -- two: none of them is a lone one
  end
end
local records = call('HMGET', active, unpack(names))
for box, name in ipairs(names) do
  held[box], drained[box] = holds_of(paused, name)
  local length = redis.pcall('XLEN', KEYS[first_box + box])
  local later = tonumber(call('HGET', delayed_counts, name)) or 0
  room[box] = type(length) == 'number' and room[box] - length - later - (is_lone(records[box]) and 1 or 0)
end
local limit, newcomers = limits_in(ARGV[4], active)
local free = limit - (tonumber(call('HGET', stats, 'depth')) or 0)
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local standers, states, windows, told, asks = {}, {}, {}, {'~'}, false
for i = 1, (#ARGV - head) / stride do
  local at = head + (i - 1) * stride
  local value = call('HGET', unique, ARGV[at + 5]) or ''
  standers[i], told[i + 1] = value, #value .. ':' .. value
  states[i], windows[i] = look_at_stander(value, records[tonumber(ARGV[at + 1])], delayed, now, ARGV[at + 6])
  if ARGV[at + 6] == MODE.LATEST and states[i] == 'waits' and value ~= ARGV[at + 11] then asks = true end
end
if asks and not may_not_replace(KEYS[first_box + 1]) then return table.concat(told) end
