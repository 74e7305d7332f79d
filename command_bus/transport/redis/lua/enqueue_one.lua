-- enqueue_one: accept one command, without delay, where nothing is paused, watched or delayed, and no line in
-- use. It does what enqueue.lua does, without its tables; whatever is out of the ordinary is left to that.
--
-- uses: alone, open_lone(record, lone)
--
-- KEYS[1]  ready     stream of activations
-- KEYS[2]  active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]  stats     hash of counters
-- KEYS[4]  later     hash: mailbox name -> number of delayed commands (see shared/delayed.lua); this and the
--                    next two may not exist
-- KEYS[5]  paused    hash: scope -> mode|since in ms|why
-- KEYS[6]  watched   hash: entity type -> number of events to keep
-- KEYS[7]  last      number of the producer's last batch, a colon, and how it was answered
-- KEYS[8]  lone      hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[9]  flows     hash: what classes and shares have used; may not exist
-- KEYS[10] mailbox
-- KEYS[11] mark      of the command; missing if it has none
-- ARGV[1]  number    of this batch, growing per producer: asked again it is answered as the first time
-- ARGV[2]  again     '1' if it may have been applied before, and an earlier answer of this producer cannot
--                    have expired yet
-- ARGV[3]  ttl       ms for which the answer is kept
-- ARGV[4]  limit     of commands in this shard; perhaps a colon and the limit of mailboxes with work
-- ARGV[5]  room      commands that the mailbox may hold
-- ARGV[6]  envelope
-- ARGV[7]  digest    of a command with a mark
--
-- returns '?' if enqueue.lua has to be asked, and the command was not touched; else as enqueue.lua: 'gone',
-- +, =, !

local active, stats, later, paused, watched = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local last, lone, mailbox, mark = KEYS[7], KEYS[8], KEYS[10], KEYS[11]
local number, ttl, room, envelope, digest = tonumber(ARGV[1]), ARGV[3], ARGV[5], ARGV[6], ARGV[7]
-- Behind the prefix, which `ready` follows in one key and `m:` in the other.
local name = string.sub(mailbox, #KEYS[1] - 2)
local call, pcall = redis.call, redis.pcall

if call('EXISTS', later, paused, watched, KEYS[9]) > 0 then return '?' end
local record = call('HGET', active, name)
local has_lone, give_entry, make_ready = nil, nil, nil  -- where they are needed
if record then  -- an idle one is empty
  has_lone, give_entry, make_ready = open_lone()
  local length = pcall('XLEN', mailbox)
  if type(length) ~= 'number' or length + (has_lone(record) and 1 or 0) >= tonumber(room) then return '?' end
end
local limit = tonumber(ARGV[4])
if not limit then
  local commands, mailboxes = string.match(ARGV[4], '^(%d+):(%d+)$')
  limit = tonumber(commands)
  if not record and call('HLEN', active) >= tonumber(mailboxes) then return '?' end
end
if (tonumber(call('HGET', stats, 'depth')) or 0) >= limit or room == '0' then return '?' end
if ARGV[2] == '1' and number > 1 and call('EXISTS', last) == 0 then return 'gone' end

local answered = pcall('SET', last, ARGV[1] .. ':+', 'GET', 'PX', ttl)  -- the first write
if type(answered) == 'table' then  -- a full server refuses it, but knows what it answered before
  local kept = call('GET', last)
  return kept and string.match(kept, '^' .. ARGV[1] .. ':(.*)$') or answered
end
local before = answered and tonumber(string.match(answered, '^%d+'))
if before and before >= number then
  call('SET', last, answered, 'PX', ttl)
  if before == number then return string.match(answered, ':(.*)$') end
  return {err = 'STALE a later batch of this producer was answered'}
end

if mark and pcall('GET', mark) then  -- producers may get marks and not ask whether they exist
  pcall('SET', last, answered or (number - 1) .. ':', 'PX', ttl)
  return '?'
end
local queued, alone = nil, false
if not record and #envelope <= LONE_BYTES and call('EXISTS', mailbox) == 0
  and type(pcall('HSET', lone, name, envelope)) == 'number' then
  local activation = pcall('XADD', KEYS[1], '*', FIELD.ENVELOPE, name)
  if type(activation) == 'string' then
    alone = tells_time(activation)
    queued = (alone and STATE.LONE or STATE.READY) .. '|' .. activation .. '|||0|0|'
  end
end
if not alone then
  if not record then has_lone, give_entry, make_ready = open_lone() end
  local _, fault = give_entry(active, mailbox, name, record)
  local added = fault or pcall('XADD', mailbox, '*', FIELD.ENVELOPE, envelope)
  if type(added) == 'table' then  -- a key of another type, or a mailbox whose ids are used up
    pcall('SET', last, answered or (number - 1) .. ':', 'PX', ttl)
    return '?'
  end
end
if mark then call('SET', mark, MARK.ACCEPTED .. digest .. name) end
if not record then call('HSET', active, name, queued or make_ready(KEYS[1], name)) end
pcall('HINCRBY', stats, 'depth', 1)  -- a counter that cannot grow must not cost the answer
pcall('HINCRBY', stats, 'accepted', 1)
return '+'
