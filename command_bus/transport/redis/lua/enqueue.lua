-- enqueue: accept commands into their mailboxes, in order, and activate the entities that were idle. One
-- with a unique key is put in line, folded into the one that holds its key, or replaces it.
--
-- uses: record, newer, lone, holds, open_line(line_flow, line_runs, line_turns, line_served, line)
-- uses: open_several(several)
-- uses: alone, admission, known, delayed, postpone, envelope_id, events, accept
-- uses: open_unique(outcomes, unique, unstarted, unique_line), enqueue_all
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
-- KEYS[15…] the mailboxes, then the mark of each command that has one, in their order. If they have unique
--           keys, `unique` (hash: key -> the command that holds it, see shared/unique.lua), and for each of
--           those that is named its mark, its caller's inbox, and its dispatch's record and stream of
--           outcomes (a mailbox where there is none)
-- ARGV[1]   number    of this batch, growing per producer: asked again it is answered as the first time
-- ARGV[2]   again     '1' if it may have been applied before, and an earlier answer of this producer cannot
--                     have expired yet
-- ARGV[3]   ttl       ms for which the answer is kept
-- ARGV[4]   limit     of commands in this shard; perhaps a colon and the limit of mailboxes with work
-- ARGV[5]   prefix    length of the mailbox keys' prefix: what follows it is the mailbox's name
-- ARGV[6]   rooms     'commands that a mailbox may hold:number of mailboxes ' for each stretch of equal ones;
--                     if commands stand in several lines, then | and for each of those its number, =, and the
--                     numbers of its other mailboxes, each with a comma between, and a space
-- ARGV[7]   targets   two bytes for each command: the number of its mailbox
-- ARGV[8]   kinds     a letter for each command: p plain, m with a mark, d delayed, b both; empty if all are
--                     plain. If any has a class or a tenant,
--           behind the letters the flows, each with a space, and a colon; then two bytes for each command:
--           the number of its flow, 0 for none
-- ARGV[9…]  for each command its envelope; then for each with a mark its digest, in their order; then for
--           each that is delayed its ms from now, below zero the moment itself, and its id. Few arguments:
--           each costs 0.2 us. If they have unique keys: ms of a reply in an inbox; for each command its key
--           and `mode delay window longest names`: f the first wins, until it is settled, s the first wins,
--           until it is started, l the latest wins; ms of delay as above, of its window and its longest wait
--           (0 if there is none); and what it stores if it holds the key, from the flags on; then for each
--           command that is named its key, what is stored of it, its reply, and ms for which its mark is kept
--           (0 if it has none)
--
-- returns 'gone' if it was asked before and its answer is not there any more; else one character per command:
-- + accepted, = duplicate,
--         ! same id with another payload, e mailbox full, t shard full, n too many mailboxes have work, p an
--         earlier command of this mailbox was refused, d it is being drained, w the mailbox takes nothing: a
--         key is of another type, or somebody has used up the ids of its stream, u folded, r replaced
--         another, x this user may not replace; behind them for each u and r the length of the other's
--         command id, a colon and that id. Or ~ and in the same form for each command that has to be named
--         its key and what is stored of it: nothing was changed, and the producer asks again
--
-- Nothing is written before the first SET or XADD, so that a server at its memory limit refuses the whole
-- batch with nothing done. A fault of one mailbox is answered to its commands alone. After the first write
-- nothing fails, whatever a counter holds.
--
-- Who holds a key has to be named if it may be replaced, and has a mark, a caller or a dispatch. What runs,
-- or was started and waits for a retry, is not touched. Commands with keys are never lone ones, so who holds
-- a key is in its mailbox or delayed. A mailbox that this empties is closed by the worker that takes its
-- activation.

local last, number = KEYS[8], tonumber(ARGV[1])
local answered = redis.call('GET', last)
if answered then
  local colon = string.find(answered, ':', 1, true)
  local before = tonumber(string.sub(answered, 1, colon - 1))
  if before == number then return string.sub(answered, colon + 1) end
  if before > number then return {err = 'STALE a later batch of this producer was answered'} end
elseif number > 1 and ARGV[2] == '1' then
  return 'gone'  -- the clock has jumped, or the key is lost: the answer is unknown
end

local answer, changed = enqueue_all()
if not answer then return changed end  -- the error
-- At the memory limit there is no room for it, but nothing was accepted either.
if changed then redis.pcall('SET', last, ARGV[1] .. ':' .. answer, 'PX', ARGV[3]) end
return answer
