-- arrive: what durable commands wait for reaches them. Uses record, lone, holds, line.
--
-- A durable command has a side record: the hash `x:<command id>`, from the first thing that is stored to its
-- settlement. Its fields:
--
-- m          message id of the command; a command that uses the id again has another, and gets nothing of
--            this record
-- e          the message id that it had before its dead letter was replayed, the first one: keys of steps and
--            ids of children are made of it
-- s:<step>   digest of a step's arguments (8 bytes) and its result
-- x:<step>~<k>~<n>   the handler has caught the error of the kth await of a step: the digest, and the error
-- y:<step>~<k>~<n>   that error has left the handler after all, and counts no longer
-- c:<call>   digest of a child (8 bytes), its command id, a bar, and its mailbox
-- t:<what>   ms at which a sleep or a time limit is over, or (s:<step>~<n>) the pause behind the nth try of a
--            step
-- u:~<call>, u:<what>   what undoes a call, or is named by itself: a command that is sent if the handler
--                       fails for good
-- o:<what>   what came of a child or a signal; the first that is written stays; `!` of a child whose outcome
--            had no room, and its first bytes: they tell how it ended
-- n:<call>   the handler waits for a child no longer: its time was over. What comes of the child is written
--            all the same
-- z:<what>~<n>   the nth await of an operation was cut off: by which time limit, or after how many ms
-- b          how many bytes outcomes of children may still have, besides small ones; the worker that calls
--            the second writes it
-- g:<name>#<n>, gn:<name>, gb:<name>, gi:<name>#<id>    the nth signal of a name, how many there were, their
--                                                       bytes, and the ids that were taken
-- gr:<name>#<n>    the nth signal of a name is left out: its value does not fit what the handler waits for
-- ga:<name>  the command has waited for this name
-- gq, gb     how many signals came of names that the command had not waited for, and their bytes
-- k          what the command ends with once it is compensated: its handler does not run again
-- cancel     who asked for its end, and why
-- p, l:<n>, ln, lq, lh    how far it is; the last entries of its log, how many there were, fence|number of
--                         the last, and digests of the first
-- d          the command is not durable: the record has a time to live
-- w, a:<field>    of a suspended command: fence|how many fields are still awaited; and for each of those the
--                 fence
--
-- The hash `suspended` has for each mailbox with a suspended command the ms since when, a bar and its command
-- id: so that they are found.
--
-- Only the holder of the lease writes s, x, y, c, t, u, n, k, z; the replay of a dead letter m and e. What
-- arrives is written by the script that brings it.

-- Let a suspended command start again, if it is this one, and with `also_tried` one that waits for a retry.
-- Its deadline no longer counts. `keys` has the names of the keys ready, active, paused, due and suspended;
-- `paused` is nil where nothing is paused. It may have `now` in ms.
local function resume(keys, name, box, message, also_tried)
  local before = redis.call('HGET', keys.active, name) or ''
  local state, _, _, suspended, attempt, first, _, parts = parse_record(before)
  local waits = also_tried and state == STATE.RETRYING and message
    and string.find(parts .. '|', '|started=' .. message .. '|', 1, true)
  local is_alone = state == STATE.LONE_SUSPENDED
  if not waits and ((state ~= STATE.SUSPENDED and not is_alone) or suspended ~= message) then return false end
  local now = keys.now
  if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  if not waits or string.find(parts, '|z=%d+:[%d-]+:%d+:1') then first = '-' .. string.format('%.0f', now) end
  redis.call('ZREM', keys.due, 'r:' .. name)
  redis.call('HDEL', keys.suspended, name)
  if not waits then parts = parts .. '|paid=' .. suspended end
  local is_held = holds_of(keys.paused, name)
  if is_alone and (is_held or lined) then is_alone = not line_up(keys.active, box, name, before) end
  local record = is_alone and queue_alone(keys.ready, name, suspended, first, parts)
    or is_held and pack_record(STATE.STOPPED, '', attempt, first, parts)
  redis.call('HSET', keys.active, name,
    record or queue(keys.ready, name, attempt, first, parts, lined and lined.head_of(box)))
  return true
end

local SMALL, NO_ROOM, HEAD = 4096, '!', 64  -- transport/ports/durable.py has the first two

-- Return what is kept of what arrives. An outcome of some size takes room, which is counted here: they come
-- from many workers. What undoes is not bounded.
local function kept_of(side, field, value)
  if #value <= SMALL or string.sub(field, 1, 2) ~= 'o:' or string.sub(field, 1, 4) == 'o:u:' then
    return value
  end
  local room = tonumber(redis.call('HGET', side, 'b'))
  if not room then return value end
  if room < #value then return NO_ROOM .. string.sub(value, 1, HEAD) end
  redis.call('HSET', side, 'b', string.format('%.0f', room - #value))
  return value
end

-- Write a field that is not there yet; if its command waits for it, and for nothing else, let that start
-- again. `fence` is the value of 'a:<field>': that of the run that waits for it.
local function write_awaited(keys, side, field, value, name, box, fence)
  redis.call('HSET', side, field, kept_of(side, field, value))
  if not fence then return end
  local waits, message = unpack(redis.call('HMGET', side, 'w', 'm'))
  local awaited, left = string.match(waits or '', '^(%d+)|(%d+)$')
  if fence ~= awaited then return end
  redis.call('HDEL', side, 'a:' .. field)
  if tonumber(left) > 1 then
    redis.call('HSET', side, 'w', string.format('%s|%d', awaited, left - 1))
  else
    resume(keys, name, box, message)
  end
end

-- Write a signal, which has a number of its own, so that it is not there yet.
local function arrive_signal(keys, side, field, value, name, box)
  write_awaited(keys, side, field, value, name, box, redis.call('HGET', side, 'a:' .. field))
end

-- Write what came of a call. Return false if it was there already; nil if the command does not know that it
-- called this child. Called behind the first write, so it does not fail: a key of another type knows nothing.
local function arrive_outcome(keys, side, call, child, value, name, box)
  local field = 'o:' .. call
  local known, there, fence = unpack(redis.pcall('HMGET', side, 'c:' .. call, field, 'a:' .. field))
  if not known or string.find(known, child .. '|', 9, true) ~= 9 then return nil end
  if there then return false end
  write_awaited(keys, side, field, value, name, box, fence)
  return true
end
