-- lone: the only command of a mailbox, in the hash `lone`: mailbox name -> envelope. A stream reserves 4 kB
-- for its first entries, and making it costs as much as all else that accepting a command does. So an entity
-- with one command has no stream: its record has the state o or O (see shared/record.lua); while it waits in
-- the line q, while it is suspended U.
--
-- Who needs the stream, to add a second command or to let the first one wait, lines the command up: an entry
-- takes its place, with the command's id and the field `l`. The envelope stays in `lone` until the mailbox is
-- idle, because a producer may not read envelopes.
--
-- The id is that of its first activation, and tells when it was accepted. So who activates it again writes it
-- into the record, as the message.

local function is_lone(record)
  -- The byte of q is 113.
  return record and string.find(record, '^[oOUq]|')
    and (string.byte(record) ~= 113 or string.find(record, '^q|||%d'))
end

-- Give a lone command its entry in the mailbox. Return the record, which is no longer of a lone one, or nil
-- and the error.
local function line_up(active, box, name, record)
  if not is_lone(record) then return record end
  local state, activation, fence, message, rest = string.match(record, '^(.)|([^|]*)|([^|]*)|([^|]*)|(.*)$')
  local added = redis.pcall('XADD', box, message ~= '' and message or activation, FIELD.IN_LONE, '1')
  if type(added) == 'table' then return nil, added end
  local longer = state == STATE.LONE_HELD and STATE.HELD or state == STATE.LONE_SUSPENDED and STATE.SUSPENDED
  record = longer and longer .. string.sub(record, 2)
    or (state == STATE.LONE and STATE.READY or STATE.IN_LINE) .. '|' .. activation .. '|||' .. rest
  redis.call('HSET', active, name, record)
  return record
end

-- Put the lone command of a mailbox, which was suspended, into the ready stream; return its record. Where the
-- line is in use, or something is paused, it is lined up instead. Called behind the first write, so it does
-- not fail.
local function queue_alone(ready, name, message, first, parts)
  local added = redis.pcall('XADD', ready, '*', FIELD.ENVELOPE, name)
  return STATE.LONE .. '|' .. (type(added) == 'string' and added or '0-0') .. '||' .. message .. '|0|'
    .. first .. '|' .. parts
end

-- Return the fields of a mailbox's entry; those of a lone command that was lined up are read from `lone`.
local function fields_of(lone, name, fields)
  if fields[1] ~= FIELD.IN_LONE then return fields end
  return {FIELD.ENVELOPE, redis.call('HGET', lone, name) or ''}
end

-- Delete what an idle mailbox leaves.
local function close(active, lone, box, name)
  redis.call('DEL', box)
  redis.call('HDEL', active, name)
  redis.pcall('HDEL', lone, name)  -- behind other writes, so it does not fail
end

-- Return what a script needs that adds a command to a mailbox which may have a lone one: whether it has, what
-- lines that up, and what makes an idle mailbox ready.
local function open_lone()
  return is_lone, line_up, function(ready, name) return queue(ready, name, '0', '0') end
end
