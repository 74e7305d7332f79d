-- remove: remove waiting commands from one mailbox (cancel, purge). A command that runs is left alone, and a
-- durable one that has begun: what it did is undone when it ends. One of several entities is removed from its
-- home, and leaves all its lines.
--
-- uses: memory_limit, record, newer, lone, holds, snooze, entry_text, keep_digest, outcomes, delayed
-- uses: open_line(line_flow, line_runs, line_turns, line_served, line), unique, events
-- uses: open_several(several), alone, put_one, postpone, arrive, deliver, agenda, send_out, tell_caller
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   stats     hash of counters
-- KEYS[4]   due       sorted set of what becomes due, by ms
-- KEYS[5]   delayed   hash: command id -> mailbox name, newline, entry (see shared/entry_text.lua)
-- KEYS[6]   later     hash: mailbox name -> number of delayed commands (see shared/delayed.lua)
-- KEYS[7]   parked    hash: mailbox name -> id of its dead letter
-- KEYS[8]   dead      stream of dead letters
-- KEYS[9]   mailbox
-- KEYS[10]  watched   hash: entity type -> number of events to keep (see shared/events.lua)
-- KEYS[11]  events    stream of what happened to commands of watched types
-- KEYS[12]  lone      hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[13]  unique    hash: key -> the command that holds it (see shared/unique.lua)
-- KEYS[14]  flows     hash: what classes and shares have used (see shared/line.lua); this and the next two
--                     may not exist
-- KEYS[15]  turns     sorted set of flows, by their virtual time
-- KEYS[16]  line      sorted set of the places of entities that wait
-- KEYS[17]  paused    hash: scope -> mode|since in ms|why (see shared/holds.lua)
-- KEYS[18]  suspended hash: mailbox name -> the command that waits (see shared/arrive.lua)
-- KEYS[19…] for each command its mark, its inbox (the mark again if no call waits), the record and stream of
--           outcomes of its dispatch or of the history (the mark again if none keeps them), its side record
--           (see shared/arrive.lua; the mark again if it is not durable), and of the durable command that
--           called it the mailbox and the side record, or twice the stream of those for another shard (twice
--           the mark if none did)
-- ARGV[1]   group     of consumers
-- ARGV[2]   name      of the mailbox
-- ARGV[3]   reply ttl in ms, of an inbox
-- ARGV[4]   fresh     '1': what was started before is left, too
-- ARGV[5…]  for each command: message id, or d:<command id> if delayed; mark ttl in ms, mark, reply, outcome,
--           its unique key (empty if it has none); for the durable command that called it the text (see
--           shared/deliver.lua; empty if none did), the outcome, and the names of the child and the call;
--           then mark, reply, outcome and that for the caller of a command that was started before
--
-- returns how many were removed; 'newer' if the mailbox is in a state that only a later release knows:
-- nothing was changed

local ready, active, stats, due, delayed = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local delayed_counts, parked, dead, box, lone = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[12]
local group, name, reply_ttl, is_fresh = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'

pass_memory_limit(ready, group)
local record = redis.call('HGET', active, name)
if is_newer(record) then return 'newer' end
local fault = nil
record, fault = line_up(active, box, name, record)
if fault then return fault end
local state, activation, _, running, attempt, first, turn, parts = parse_record(record or '')
local letter = redis.call('HGET', parked, name)
local holds = state == STATE.HELD or state == STATE.HELD_AND_CHANGED
local last = holds and last_running(running, parts)
local head = redis.call('XRANGE', box, '-', '+', 'COUNT', 1)[1]
local head_id = head and head[1] or ''

local publish, is_watched = publisher(KEYS[10], KEYS[11])
local function envelope_of(id)
  if not is_watched(name) then return '' end
  if string.sub(id, 1, 2) == 'd:' then
    return envelope_of_text(string.match(redis.call('HGET', delayed, string.sub(id, 3)) or '', '\n(.*)')
      or '')
  end
  local entry = redis.call('XRANGE', box, id, id)[1]
  local fields = entry and fields_of(lone, name, entry[2])
  return fields and fields[1] == FIELD.ENVELOPE and fields[2] or ''
end

-- Return whether a command is durable and has stored something: it ends by itself, for what it did may have
-- to be undone.
local function has_begun(id, side, mark)
  return side ~= mark and redis.call('HGET', side, 'm') == id
end

-- Return whether a command was started before and waits to be started again, so that it may have done
-- something. One that was given back unrun does not count as an attempt.
local function had_begun(id)
  if string.sub(id, 1, 2) == 'd:' then return false end
  return may_have_run(id, parts)
    or not holds and id == head_id and attempt and (attempt ~= '0' or string.sub(first, 1, 1) == '-')
end

local queue_up = redis.call('EXISTS', KEYS[14]) == 1
  and open_line(ready, active, KEYS[14], KEYS[15], KEYS[16])
local several, freed = open_several({ready = ready, active = active, lone = lone, paused = KEYS[17]}), 0

local function take_out(id, side, mark)
  if string.sub(id, 1, 2) == 'd:' then
    local kept = redis.call('HGET', delayed, string.sub(id, 3))
    local entry = kept and string.match(kept, '\n(.*)')
    return take_delayed(due, delayed, delayed_counts, name, string.sub(id, 3), entry)
  end
  if holds and not is_behind(id, last) then return false end  -- it runs, or is settled
  if is_fresh and (id == head_id and (first or '0') ~= '0' or may_have_run(id, parts)) then return false end
  if (state == STATE.SUSPENDED and id == running) or has_begun(id, side, mark) then return false end
  local entry = redis.call('XRANGE', box, id, id)[1]
  if not entry or redis.call('XDEL', box, id) == 0 then return false end
  freed = freed + several.free_all(entry[2], name, box)
  if holds then
    redis.call('HSET', active, name, changed_behind(record))
  elseif id == head_id then
    redis.call('ZREM', due, 'r:' .. name)
    if letter then
      redis.call('HDEL', parked, name)
      redis.call('XDEL', dead, letter)
    end
    if state == STATE.RETRYING or state == STATE.LIMITED or state == STATE.BLOCKED
      or (state == STATE.STOPPED and letter) then
      state = 'free'
    end
    parts = several.without_lines(without_snooze(parts))
    if state == STATE.READY or state == STATE.STOPPED then
      redis.call('HSET', active, name, pack_record(state, activation, '0', '0', parts))
    elseif state == STATE.IN_LINE then
      redis.call('HSET', active, name, pack_record(state, '', '0', '0', turn .. parts))
    end
  end
  return true
end

local removed, told, left = 0, {}, {}
local EACH = 13  -- arguments of a command
local key = 18
for arg = 5, #ARGV, EACH do
  local envelope = envelope_of(ARGV[arg])
  local begun = had_begun(ARGV[arg])
  if take_out(ARGV[arg], KEYS[key + 5], KEYS[key + 1]) then
    removed = removed + 1
    if string.sub(ARGV[arg], 1, 2) ~= 'd:' then left[#left + 1] = ARGV[arg] end
    if KEYS[key + 5] ~= KEYS[key + 1] then redis.call('DEL', KEYS[key + 5]) end
    publish('cancelled', name, envelope, '', '', '', '')
    local mark, reply = ARGV[arg + (begun and 9 or 2)], ARGV[arg + (begun and 10 or 3)]
    local outcome, answer = ARGV[arg + (begun and 11 or 4)], ARGV[arg + (begun and 12 or 7)]
    if mark ~= '' then
      redis.call('SET', KEYS[key + 1], keep_digest(KEYS[key + 1], mark), 'PX', ARGV[arg + 1])
    end
    if reply ~= '' then
      redis.pcall('LPUSH', KEYS[key + 2], reply)  -- after the first write nothing fails
      redis.pcall('PEXPIRE', KEYS[key + 2], reply_ttl)
    end
    if outcome ~= '' then keep_outcome(KEYS[key + 3], KEYS[key + 4], outcome) end
    release_key(KEYS[13], ARGV[arg + 5], ARGV[arg])
    if ARGV[arg + 6] ~= '' then
      told[#told + 1] = {KEYS[key + 6], KEYS[key + 7], ARGV[arg + 6], answer, ARGV[arg + 8]}
    end
  end
  key = key + 7
end
expire_outcomes()

if queue_up and record and #left > 0 then  -- what is left says what the entity waits in
  local was_free = state == 'free'  -- then it is written below, with the parts of the next command
  local known = was_free and pack_record(STATE.RETRYING, '', '0', '0', parts)
    or redis.call('HGET', active, name)
  record = queue_up.left(known, name, left, box)
  redis.call('HSET', active, name, record)
  state, activation, _, running, attempt, first, turn, parts = parse_record(record)
  if was_free then state = 'free' end
end

if record and redis.call('XLEN', box) == 0 and not holds then
  if activation ~= '' then
    redis.call('XACK', ready, group, activation)
    redis.call('XDEL', ready, activation)
  end
  close(active, lone, box, name)
elseif state == 'free' then
  redis.call('HSET', active, name, queue(ready, name, '0', '0', parts, lined and lined.head_of(box)))
end
local keys = {ready = ready, active = active, stats = stats, paused = KEYS[17], due = due,
  suspended = KEYS[18]}
for _, each in ipairs(told) do tell_caller(keys, unpack(each)) end
if queue_up then queue_up.finish() end
if removed > 0 then redis.pcall('HINCRBY', stats, 'depth', -removed - freed) end
return removed
