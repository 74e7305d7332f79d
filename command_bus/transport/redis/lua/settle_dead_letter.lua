-- settle_dead_letter: replay or discard one dead letter.
--
-- uses: memory_limit, record, newer, lone, snooze, entry_text, holds, keep_digest, outcomes
-- uses: open_line(line_flow, line_runs, line_turns, line_served, line), unique, events, rewrite
-- uses: open_several(several), alone, put_one, delayed, postpone, arrive, deliver, agenda, send_out
-- uses: tell_caller
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   stats     hash of counters
-- KEYS[4]   paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[5]   parked    hash: mailbox name -> id of its dead letter
-- KEYS[6]   dead      stream of dead letters
-- KEYS[7]   mailbox
-- KEYS[8]   mark      of the command id
-- KEYS[9]   record    of the dispatch or the history that keeps its outcome (the mark again if none does)
-- KEYS[10]  outcomes  of that dispatch or the history (the mark again if none)
-- KEYS[11]  watched   hash: entity type -> number of events to keep (see shared/events.lua)
-- KEYS[12]  events    stream of what happened to commands of watched types
-- KEYS[13]  lone      hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[14]  unique    hash: key -> the command that holds it (see shared/unique.lua)
-- KEYS[15]  flows     hash: what classes and shares have used (see shared/line.lua); this and the next two
--                     may not exist
-- KEYS[16]  turns     sorted set of flows, by their virtual time
-- KEYS[17]  line      sorted set of the places of entities that wait
-- KEYS[18]  side      record of a durable command (see shared/arrive.lua); the mark again if it is none
-- KEYS[19]  due       sorted set of what becomes due, by ms
-- KEYS[20]  suspended hash: mailbox name -> the durable command that waits (see shared/arrive.lua)
-- KEYS[21]  caller    of a command that is discarded while parked: the mailbox of the durable command that
--                     called it, or the stream of those for
--           another shard (the mark if none did)
-- KEYS[22]  theirs    the side record of that, or that stream again (the mark if none did)
-- ARGV[1]   group     of consumers
-- ARGV[2]   verb      replay, discard
-- ARGV[3]   letter    id of the entry in `dead`
-- ARGV[4]   name      of the mailbox
-- ARGV[5]   mark ttl in ms, of a command that is discarded while parked
-- ARGV[6]   mark      of a command that waits (replay) or was discarded; empty if it has none
-- ARGV[7]   outcome   of a command that is discarded, for its dispatch or the history; empty if none keeps it
-- ARGV[8]   edited    envelope with which a command is replayed; empty if it is its own
-- ARGV[9]   key       unique key of the command; empty if it has none
-- ARGV[10]  stander   what `unique` has of a command that is replayed, from the flags on
-- ARGV[11]  flow      of the command (see shared/line.lua); 1 if it has no class of its own
-- ARGV[12]  ending    of a durable command that is replayed to undo what it did: what it ends with; else
--                     empty
-- ARGV[13]  text      for that (see shared/deliver.lua); empty if none did
-- ARGV[14]  answer    the outcome for that
-- ARGV[15]  extra     the names of the child and the call
--
-- returns 'replayed', 'discarded', 'gone' if there is no such letter, or 'newer' if it parks a mailbox in a
-- state that only a later release
--         knows, or 'large' if it parks one that is too large to be written again: nothing was changed
--
-- A parked command is still the head of its mailbox: replayed, it runs before the others. Any other is added
-- at the mailbox's end. If the mailbox takes nothing, the error is the answer and nothing is changed. After
-- the first write nothing fails. Replayed at the end, it holds its unique key again if no other command does;
-- else it waits beside that one.

local ready, active, stats, paused = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local parked, dead, box, mark = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local group, verb, id, name, edited, flow = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[8], ARGV[11]

pass_memory_limit(ready, group)
local entry = redis.call('XRANGE', dead, id, id)[1]
if not entry then return 'gone' end
local length = redis.pcall('XLEN', box)
if type(length) ~= 'number' then return length end  -- of another type: nothing is changed
local fields = {}
for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end

local record = redis.call('HGET', active, name)
local first, _, kept = select(6, parse_record(record or ''))
local parts = without_snooze(kept)
local queue_up = redis.call('EXISTS', KEYS[15]) == 1
  and open_line(ready, active, KEYS[15], KEYS[16], KEYS[17])
local several, places = open_several({ready = ready, active = active, lone = KEYS[13], paused = paused}), 0
local function wake(first)
  parts = several.without_lines(parts)
  local held = holds_of(paused, name)
  redis.call('HSET', active, name,
    held and pack_record(STATE.STOPPED, '', '0', first, parts)
    or queue(ready, name, '0', first, parts, lined and lined.head_of(box)))
end
local function finish()
  if queue_up then queue_up.finish() end
end

local is_parked = redis.call('HGET', parked, name) == id
if is_parked and is_newer(record) then return 'newer' end
if is_parked and edited ~= '' and not rewrite_head(box, KEYS[13], name, edited) then return 'large' end
local added = ''
if verb == 'replay' and not is_parked then
  local replayed = fields_in(fields['e'] or '')
  if edited ~= '' then replayed = with_envelope(replayed, edited) end
  -- Its worker reads the side record also at the first start.
  if KEYS[18] ~= mark then replayed = with_field(replayed, 'd', '1') end
  places = several.join_all(replayed, name, box, flow)
  if not places then return {err = 'WRONGTYPE another line of this command takes nothing'} end
  local lined_up, fault = line_up(active, box, name, record)
  added = fault or redis.pcall('XADD', box, '*', unpack(replayed))
  if type(added) == 'table' then
    several.free_all(replayed, name, box)
    return added
  end
  if queue_up and record then
    redis.call('HSET', active, name, queue_up.noted(lined_up, name, flow, added, box))
  end
  if queue_up and not record then parts = queue_up.parts_of(flow) end
end
redis.call('XDEL', dead, id)
local side = KEYS[18] ~= mark and KEYS[18]
if side and ARGV[12] ~= '' then redis.call('HSET', side, 'k', ARGV[12]) end
if side and verb == 'discard' then redis.call('DEL', side) end
local publish = publisher(KEYS[11], KEYS[12])
publish(verb == 'replay' and 'replayed' or 'discarded', name, envelope_of_text(fields['e'] or ''), '', '', '',
  id)
if verb == 'discard' and ARGV[7] ~= '' then
  keep_outcome(KEYS[9], KEYS[10], ARGV[7])
  expire_outcomes()
end
if is_parked then
  redis.call('HDEL', parked, name)
  if verb == 'replay' then
    local head = redis.call('XRANGE', box, '-', '+', 'COUNT', 1)[1]
    if head and kept then parts = with_first(kept, head[1], first) end
    if ARGV[6] ~= '' then redis.call('SET', mark, keep_digest(mark, ARGV[6])) end
  else
    local head = redis.call('XRANGE', box, '-', '+', 'COUNT', 1)[1]
    if head then
      redis.call('XDEL', box, head[1])
      release_key(KEYS[14], ARGV[9], head[1])
      redis.pcall('HINCRBY', stats, 'depth', -1 - several.free_all(head[2], name, box))
    end
    if ARGV[6] ~= '' then redis.call('SET', mark, keep_digest(mark, ARGV[6]), 'PX', ARGV[5]) end
  end
  if redis.call('XLEN', box) == 0 then
    close(active, KEYS[13], box, name)
  else
    local time = redis.call('TIME')
    wake('-' .. string.format('%.0f', time[1] * 1000))  -- below zero: replayed, its deadline no longer counts
  end
  -- Any other letter is of a command whose caller was told when it ended.
  if verb == 'discard' and ARGV[13] ~= '' then
    local keys = {ready = ready, active = active, stats = stats, paused = paused, due = KEYS[19],
      suspended = KEYS[20]}
    tell_caller(keys, KEYS[21], KEYS[22], ARGV[13], ARGV[14], ARGV[15])
  end
  finish()
  return verb == 'replay' and 'replayed' or 'discarded'
end
if verb == 'discard' then
  if side then redis.call('PEXPIRE', mark, ARGV[5]) end
  return 'discarded'
end

-- It goes on from what it has stored, and names its steps to the world outside as before; a letter without
-- `x` was compensated.
if side then
  local known = redis.call('HMGET', side, 'e', 'm')
  local seed = known[1] or known[2] or (fields['x'] ~= '1' and fields['x'])
  if seed then
    redis.call('HSET', side, 'm', added, 'e', seed)
    redis.call('PERSIST', side)
  end
end
if ARGV[6] ~= '' then redis.call('SET', mark, keep_digest(mark, ARGV[6])) end
if ARGV[9] ~= '' then
  release_late_key(KEYS[14], ARGV[9], record)
  redis.pcall('HSETNX', KEYS[14], ARGV[9], added .. '|||' .. ARGV[10])
end
redis.pcall('HINCRBY', stats, 'depth', 1 + places)
if not record then wake('0') end
finish()
return 'replayed'
