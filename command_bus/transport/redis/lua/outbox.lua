-- outbox: accept commands that a transaction of a database has left in its table, in order, each once.
--
-- uses: record, newer, lone, holds, open_line(line_flow, line_runs, line_turns, line_served, line)
-- uses: open_several(several)
-- uses: alone, admission, known, delayed, postpone, envelope_id, events, accept
-- uses: open_unique(outcomes, unique, unstarted, unique_line), enqueue_all
--
-- Keys and arguments are as of enqueue.lua, but for KEYS[8] and ARGV[1] to ARGV[3].
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record
-- KEYS[3]   stats     hash of counters
-- KEYS[4]   due       sorted set of what becomes due
-- KEYS[5]   delayed   hash: command id -> mailbox name, newline, entry
-- KEYS[6]   later     hash: mailbox name -> number of delayed commands
-- KEYS[7]   paused    hash: scope -> mode|since in ms|why
-- KEYS[8]   outbox    hash: value -> token, a bar and the answer of the last request that changed it; key
--                     of a row -> '' of what was accepted and may stand in the table still
-- KEYS[9]   watched   hash: entity type -> number of events to keep
-- KEYS[10]  arrivals  stream of what senders did to commands of watched types
-- KEYS[11]  lone      hash: mailbox name -> envelope
-- KEYS[12]  flows     hash: what classes and shares have used; this and the next two may not exist
-- KEYS[13]  turns     sorted set of flows
-- KEYS[14]  line      sorted set of the places of entities that wait
-- KEYS[15…] the mailboxes, then the mark of each command that has one
-- ARGV[1]   expected  what `value` must be; empty: there is none yet; '?': only look
-- ARGV[2]   token     of this request, random
-- ARGV[3]   rows      keys of the commands' rows, each with a space; a bar; keys of rows that are deleted,
--                     each with a space
-- ARGV[4]   limit     of commands in this shard
-- ARGV[5]   prefix    length of the mailbox keys' prefix
-- ARGV[6]   rooms     of the mailboxes
-- ARGV[7]   targets   the mailbox of each command
-- ARGV[8]   kinds     of the commands
-- ARGV[9…]  envelopes, digests and delays; no command has a unique key
--
-- returns {value, keys of rows…} if that is not what was expected: nothing was changed; else one character
-- per command as enqueue.lua does. No row that is noted may be sent again: who expects the right value knows
-- them
--
-- What is noted and the token that it was noted under are one write with the commands. So a relay that was
-- paused, or a request of it that is late, meets another token; and a failover that has lost the last writes
-- has lost the notes with the commands. The answer stands in `value` because a request that is repeated
-- after a failover may meet fuller mailboxes: the token alone would name two states.

local outbox, call = KEYS[8], redis.call
local present = call('HGET', outbox, 'value') or ''
if ARGV[1] ~= present then
  local found = {present}
  for _, name in ipairs(call('HKEYS', outbox)) do
    if name ~= 'value' then found[#found + 1] = name end
  end
  return found
end

local rows, deleted = string.match(ARGV[3], '^([^|]*)|(.*)$')
local ids, gone = {}, {}
for id in string.gmatch(rows, '%S+') do ids[#ids + 1] = id end
for id in string.gmatch(deleted, '%S+') do gone[#gone + 1] = id end
local answer, fault = '', nil
if #ids > 0 then
  answer, fault = enqueue_all()
  if not answer then return fault end
end
if #gone > 0 then call('HDEL', outbox, unpack(gone)) end
local noted = {'value', ARGV[2] .. '|' .. answer}
for i = 1, #ids do
  local admission = string.sub(answer, i, i)
  if admission == '+' or admission == '=' then
    noted[#noted + 1], noted[#noted + 2] = ids[i], ''
  end
end
call('HSET', outbox, unpack(noted))
return answer
