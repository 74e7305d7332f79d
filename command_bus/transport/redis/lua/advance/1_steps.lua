-- advance: settle the commands that were running and start the next of each entity, for a batch of entities.
--
-- uses: memory_limit, record, newer, lone, fences, holds, keep_digest, outcomes
-- uses: open_line(line_flow, line_runs, line_turns, line_served, line), events
-- uses: open_limits(line_flow, limits, limit_passes, limit_turns, limit_queues, limit_wakes)
-- uses: open_several(several)
--
-- KEYS[1]   ready     stream of activations; its pending entries are the leases
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   fence     the shard's highest fence
-- KEYS[4]   stats     hash of counters
-- KEYS[5]   due       sorted set of what becomes due, by ms
-- KEYS[6]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[7]   parked    hash: mailbox name -> id of its dead letter
-- KEYS[8]   dead      stream of dead letters
-- KEYS[9]   watched   hash: entity type -> number of events to keep (see shared/events.lua)
-- KEYS[10]  events    stream of what happened to commands of watched types
-- KEYS[11]  lone      hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[12]  rules     hash: what limits apply (see shared/limits.lua)
-- KEYS[13…] the hash `limits` and the sorted set `places` if the prefix is below zero: the worker knows of
--           limits, and this is the first shard; then the mailbox of each step; then, in the order of the
--           steps, the keys that their operations name: m and e a mark, i an inbox, o the record and the
--           stream of outcomes of a dispatch or of the history, u the hash of unique keys (see
--           shared/unique.lua), s the hash `states`, x a side record (see shared/arrive.lua), r the mailbox
--           and the side record of the command that called this one and the hash `suspended`, f the hashes
--           `delayed` and `later` and for each follow-up its mailbox and its mark, if it has one, or twice
--           the stream of those for another shard; and by its verb u: the hash `suspended` (see there); then
--           flows, turns and line, if the worker knows that the line is in use, or what usual steps name
-- ARGV[1]   group     of consumers
-- ARGV[2]   owner     consumer name of the worker that asks
-- ARGV[3]   reply ttl in ms, of an inbox
-- ARGV[4]   prefix    length of the mailbox keys' prefix: what follows it is the mailbox's name; below zero:
--                     see KEYS[13]
-- ARGV[5]   count     of steps
-- ARGV[6]   ahead     how many commands of a mailbox are read at a time: the one that is started, and those
--                     behind it
-- ARGV[7…]  for each step: operation, activation, holder, running ('fence|message', or empty if none of its
--           commands was started; then '>next' if the worker has read the next command ahead; of a take
--           '+|message' if limits let this message start); then, if the operation has m: mark ttl in ms,
--           mark; e: ttl; i: reply; o: outcome; u: unique key; s: state of the entity, empty if it ends; x:
--           'k' if it is kept; r: call, child and outcome; f: how many follow-ups, and for each its text (see
--           shared/deliver.lua), ms from now until it takes its place, below zero the moment itself, envelope
--           and mark, or child and call of an outcome for another shard; and by its verb b, p: record, raw
--           envelope; w: delay in ms, '1' if the attempt counts, and its error, '0' if not, 's' if its
--           handler put it off; g: '1' if the attempt counts; u: ms when it ends, empty if it has no end, '1'
--           if the worker knows that the command is to be cancelled, how many fields must be there, how many
--           are awaited, its command id, and those fields; last the usual steps, if there are any (see
--           2a_usual.lua)
--
-- An operation is a few letters. The first is the verb: t take, d done, n done but denied, x done but
-- expired, c done but cancelled, b write a dead letter, p park, w wait for a retry or a snooze, g give back,
-- l wait for the limit that refused it, u suspend. The second says what follows: s stay (start the next), y
-- yield (only if no other mailbox waits), l leave (start none). The others say what is left: a mark (m), a
-- reply (i), an outcome (o), a unique key that is released if the command holds it (u), the state of its
-- entity (s), the outcome of a call for the durable command that waits for it in this shard (r), follow-ups
-- (f), tokens of limits that its start took and no handler used (t), a side record, which is deleted unless
-- it is kept with a dead letter (x), or the end of a wait (e): if the mark says that a command waits in this
-- mailbox, the mark gets a time to live; any other mark stays as it is.
--
-- returns now in ms, then for each step two values:
--         'fence|message|attempt|first start in ms' of the command that now runs under this lease, with the
--         parts of its record (see shared/record.lua), '|place=1' if limits of this shard gave it a place,
--         and '|again=1' if this step did not start it: what is known of the entity's state may be wrong
--         then; and one of these: its envelope; all fields of its entry, if it has others; its envelope and a
--         list of the ids and envelopes behind it; nil if it was read ahead
--         'idle', 'yield', 'wait' or 'stop', and nil     the lease is given up
--         'ask', and the id and fields of the next one   the lease is kept: limits of the first shard or by a
--                                                        key, or for a called command, have to be asked;
--                                                        behind them 1 if it was suspended, its flow if it
--                                                        has one, 1 if its deadline counts, 1 if workers seem
--                                                        to die of reading it, and the costs of its further
--                                                        entities; else ''
--         'gone' and nil                                 the lease is not ours: nothing was changed
--         'error' and a text                             a key of this entity is of another type
--         and last what came of the usual steps
--
-- After the first write no fault fails the whole batch, whatever a counter or a record holds: what was done
-- is answered.
--
-- A step that is repeated by the same holder (a lost reply) and has taken effect already answers with the
-- present state. The holder is one lease of one worker, not the worker: a worker that lost an activation and
-- reads it again may not start its command. What all entities share is read once before the steps and written
-- once after them; `records` holds the present state in between. Little of that is a function: each function
-- that a script defines costs 0.1 us per call of the script.
--
-- A settled command stays in its mailbox until the next read there, because a deletion walks over all that
-- was deleted before it. So what stands before the running command of a held mailbox is settled, fewer
-- commands than are read at a time, and whatever ends a lease trims it before it writes anything.
-- Who removes something behind a running command writes H into the record (see shared/record.lua): then what
-- was read ahead is not used.

local ready, active, fence_key, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local due, paused, parked, dead, lone = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[11]
local group, owner, reply_ttl, prefix, count, ahead =
  ARGV[1], ARGV[2], ARGV[3], math.abs(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local call, try, byte, sub, find, format =
  redis.call, redis.pcall, string.byte, string.sub, string.find, string.format
local HELD, HELD_AND_CHANGED, LONE, LONE_HELD, GRANTED, BELOW_ZERO, YIELD =
  byte(STATE.HELD), byte(STATE.HELD_AND_CHANGED), byte(STATE.LONE), byte(STATE.LONE_HELD), byte('+'),
  byte('-'), byte(FOLLOW.YIELD)
local AHEAD_BYTES = 65536  -- of the commands of one mailbox in an answer

pass_memory_limit(ready, group)
