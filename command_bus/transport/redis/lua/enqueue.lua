-- enqueue: accept commands into their mailboxes, in order, and activate the entities that were idle.
--
-- uses: record, newer, lone, holds, open_line(line_flow, line_runs, line_turns, line_served, line), admission
-- uses: known, delayed, postpone, envelope_id, events
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
-- KEYS[15…] the mailboxes, then the mark of each command that has one, in their order
-- ARGV[1]   number    of this batch, growing per producer: asked again it is answered as the first time
-- ARGV[2]   again     '1' if it may have been applied before, and an earlier answer of this producer cannot
--                     have expired yet
-- ARGV[3]   ttl       ms for which the answer is kept
-- ARGV[4]   limit     of commands in this shard; perhaps a colon and the limit of mailboxes with work
-- ARGV[5]   prefix    length of the mailbox keys' prefix: what follows it is the mailbox's name
-- ARGV[6]   rooms     'commands that a mailbox may hold:number of mailboxes ' for each stretch of equal ones
-- ARGV[7]   targets   two bytes for each command: the number of its mailbox
-- ARGV[8]   kinds     a letter for each command: p plain, m with a mark, d delayed, b both; empty if all are
--                     plain. If any has a class or a tenant,
--           behind the letters the flows, each with a space, and a colon; then two bytes for each command:
--           the number of its flow, 0 for none
-- ARGV[9…]  for each command its envelope; then for each with a mark its digest, in their order; then for
--           each that is delayed its ms from now, below zero the moment itself, and its id. Few arguments:
--           each costs 0.2 us
--
-- returns 'gone' if it was asked before and its answer is not there any more; else one character per command:
-- + accepted, = duplicate,
--         ! same id with another payload, e mailbox full, t shard full, n too many mailboxes have work, p an
--         earlier command of this mailbox was refused, d it is being drained, w the mailbox takes nothing: a
--         key is of another type, or somebody has used up the ids of its stream
--
-- Nothing is written before the first SET or XADD, so that a server at its memory limit refuses the whole
-- batch with nothing done. A fault of one mailbox is answered to its commands alone. After the first write
-- nothing fails, whatever a counter holds.

local ready, active, stats, due, delayed, delayed_counts, paused, last =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local lone, flows, first_box = KEYS[11], KEYS[12], 14
local number, prefix, targets, kinds = tonumber(ARGV[1]), tonumber(ARGV[5]), ARGV[7], ARGV[8]
local head = 8
local call, byte, sub = redis.call, string.byte, string.sub

local answered = call('GET', last)
if answered then
  local colon = string.find(answered, ':', 1, true)
  local before = tonumber(sub(answered, 1, colon - 1))
  if before == number then return sub(answered, colon + 1) end
  if before > number then return {err = 'STALE a later batch of this producer was answered'} end
elseif number > 1 and ARGV[2] == '1' then
  return 'gone'  -- the clock has jumped, or the key is lost: the answer is unknown
end

-- Delayed, paused, watched, or a line.
local any, publish = call('EXISTS', delayed_counts, paused, KEYS[9], flows) > 0, nil
if any and call('EXISTS', KEYS[9]) == 1 then publish = publisher(KEYS[9], KEYS[10]) end

local flow_of_command, letters = flow_reader(sub(kinds, #targets / 2 + 1), flows), sub(kinds, 1, #targets / 2)
any, kinds = any or #kinds > #letters, letters
local queue_up = any and call('EXISTS', flows) == 1 and open_line(ready, active, flows, KEYS[13], KEYS[14])
  or nil
if publish or queue_up then any = call('EXISTS', delayed_counts, paused) > 0 end
local limit, newcomers = limits_in(ARGV[4], active)
local free = limit - (tonumber(call('HGET', stats, 'depth')) or 0)

local names, room = {}, {}
for space, many in string.gmatch(ARGV[6], '(%d+):(%d+) ') do
  for box = #names + 1, #names + many do
    names[box] = sub(KEYS[first_box + box], prefix + 1)
    room[box] = tonumber(space)
  end
end
local boxes, count = #names, #targets / 2
local records = call('HMGET', active, unpack(names))

local held, drained = {}, {}
if any then
  for box, name in ipairs(names) do held[box], drained[box] = holds_of(paused, name) end
end

for box = 1, boxes do
  if records[box] then  -- an idle one is empty
    local length = redis.pcall('XLEN', KEYS[first_box + box])
    room[box] = type(length) == 'number' and room[box] - length - (is_lone(records[box]) and 1 or 0)
  end
  if any and room[box] then
    room[box] = room[box] - (tonumber(call('HGET', delayed_counts, names[box])) or 0)
  end
end

local admissions, refused = {}, {}
local many = {}
for i = 1, count do
  local high, low = byte(targets, 2 * i - 1, 2 * i)
  local box = 256 * high + low
  many[box] = (many[box] or 0) + 1
end
local put, spoiled, finish = mailbox_writer(ready, active, lone, first_box, names, records, held, many,
  queue_up)
local accepted, marks, digests = 0, first_box + boxes, head + count
local delays = digests
if kinds ~= '' then
  local _, marked = string.gsub(kinds, '[mb]', '')
  delays = digests + marked
end

for i = 1, count do
  local high, low = byte(targets, 2 * i - 1, 2 * i)
  local box, kind, delay, mark, digest, admission = 256 * high + low, KIND.PLAIN, 0, nil, nil, nil
  if kinds ~= '' then
    kind = sub(kinds, i, i)
    if kind == KIND.MARKED or kind == KIND.MARKED_AND_DELAYED then
      marks, digests = marks + 1, digests + 1
      mark, digest = KEYS[marks], ARGV[digests]
    end
    if kind == KIND.DELAYED or kind == KIND.MARKED_AND_DELAYED then
      delays, delay = delays + 2, tonumber(ARGV[delays + 1])
    end
  end
  if not room[box] then
    admission = ADMISSION.TAKES_NOTHING
  elseif refused[box] or drained[box] or room[box] < 1 or free < 1 or (newcomers and newcomers < 1 and not records[box]) then
    admission = mark and known(mark, digest)
    if not admission then
      admission = drained[box] and ADMISSION.DRAINED or refused[box] and ADMISSION.EARLIER_REFUSED or room[box] < 1 and ADMISSION.MAILBOX_FULL or free < 1 and ADMISSION.SHARD_FULL or ADMISSION.TOO_MANY_MAILBOXES
      refused[box] = true
    end
  elseif mark and not call('SET', mark, MARK.ACCEPTED .. digest .. names[box], 'NX') then
    admission = known(mark, digest)
  else
    local fault, idle = nil, not records[box]
    local id, at = delay ~= 0 and ARGV[delays] or (any and id_in(ARGV[head + i])), nil
    if delay ~= 0 or any then at = waits_until(due, delayed, delayed_counts, names[box], id, delay) end
    if at then
      local entry = with_flow(ARGV[head + i], flow_of_command(i))
      fault = postpone(ready, due, delayed, delayed_counts, KEYS[first_box + box], names[box], id, at, entry)
    else
      fault = put(box, ARGV[head + i], queue_up and flow_of_command(i))
    end
    if not fault then
      room[box] = room[box] - 1
      free = free - 1
      if newcomers and idle and records[box] then newcomers = newcomers - 1 end
      accepted = accepted + 1
      admission = '+'
      if publish then
        publish('accepted', names[box], ARGV[head + i], '', '', '',
          at and at > now_ms() and string.format('%.0f', at - now_ms()) or '')
      end
    else
      if mark then redis.pcall('SET', mark, '', 'PX', 1) end  -- not deleted: a producer may not delete marks
      -- At the memory limit: this would have been the first write.
      if not spoiled(box, fault) and accepted == 0 then return fault end
      room[box], admission = false, ADMISSION.TAKES_NOTHING
    end
  end
  admissions[i] = admission
end

local answer = table.concat(admissions)
finish()
if accepted > 0 then
  redis.pcall('HINCRBY', stats, 'depth', accepted)  -- a counter that cannot grow must not cost the answer
  redis.pcall('HINCRBY', stats, 'accepted', accepted)
end
-- At the memory limit there is no room for it, but nothing was accepted either.
if accepted > 0 or next(refused) then
  redis.pcall('SET', last, ARGV[1] .. ':' .. answer, 'PX', ARGV[3])
end
return answer
