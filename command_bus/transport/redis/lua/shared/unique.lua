-- unique: the hash `unique`: key -> the command that holds it, as place|window|most|flags|inbox|name|id.
--
-- A key is the part of the mailbox's name before its colon, a colon, the encoded entity id, a colon, and the
-- key that the application gave.
--
-- place    the command's id in its mailbox; d while it is delayed; s once it is settled, while its window
--          holds the key
-- window   ms until which the key is held whatever becomes of the command; empty if there is no window
-- most     ms after which the command is not put off any more, or its window not begun again; empty if there
--          is no such limit
-- flags    w if it stands in several lines, so that none takes its place; behind it g if its command id is
--          remembered; behind it t and for how many ms from its place in the mailbox
--          on it may be started, if it has a deadline; behind that o and the percent-encoded id of the
--          dispatch that keeps its outcome, or h<age in ms>:<number> if it has a history
-- inbox    of the caller who waits for its reply, percent-encoded; empty if none does
-- name     wire name
-- id       command id
--
-- Who settles or removes a command releases its key. A stander that is gone without that is not believed: see
-- `standing`.

local function parse_stander(value)
  return string.match(value, '^([^|]*)|(%d*)|(%d*)|([^|]*)|([^|]*)|([^|]*)|(.*)$')
end

-- Return whether a dispatch or the history keeps the outcome of a stander.
local function keeps_end(value)
  return string.find(select(4, parse_stander(value)), '^w?g?t?%d*[oh]') ~= nil
end

-- Return whether a stander is the command at a place: a message id, or d: and the id of a delayed command.
local function stands_at(value, place)
  local at, _, _, _, _, _, id = parse_stander(type(value) == 'string' and value or '')
  if string.sub(place, 1, 2) ~= 'd:' then return at == place end
  return at == PLACE.DELAYED and id == string.sub(place, 3)
end

-- Return whether the deadline of a stander in a mailbox has passed that was not started before it.
local function is_late(value, now)
  local place, _, _, flags = parse_stander(value)
  local ttl = string.match(flags, '^w?g?t(%d+)')
  return ttl and now > (string.match(place, '^%d+') or now) + ttl
end

-- Return 'waits'; 'late' if its deadline has passed, so that it never runs; 'started' of a command that runs,
-- or was started and waits to be started again; nil if the command is gone.
--
-- This asks the record only, because a producer may not read mailboxes: the record names the command that
-- runs, or as its part `started` the one that was started. What is behind it is believed. A state that only a
-- later release knows is left to that.
local function standing(value, record, delayed, now)
  local place, _, _, _, _, _, id = parse_stander(value)
  if place == PLACE.DELAYED then return redis.call('HEXISTS', delayed, id) == 1 and 'waits' or nil end
  if not place or place == PLACE.SETTLED or not record or is_lone(record) then return nil end
  if is_newer(record) then return 'started' end
  local state, _, _, running, attempt, first, _, parts = parse_record(record)
  if state == STATE.BLOCKED then running = '' end
  local late = is_late(value, now) and 'late'
  if running == place then return 'started' end
  if may_have_run(place, parts) and (running == '' or is_behind(place, running)) then return 'started' end
  if running ~= '' then
    if not is_behind(place, running) then return nil end
    return is_behind(place, last_running(running, parts)) and (late or 'waits') or 'started'
  end
  if first == '0' then return late or 'waits' end
  local head = string.match(parts, '|started=([^|]*)')
  if head ~= place then return head and late or 'waits' end
  -- Given back unrun, and not replayed: 45 is the minus.
  return attempt == '0' and string.byte(first) ~= 45 and late or 'started'
end

-- Release the key of a command that was removed, if it is that command which holds it. After the first write
-- this does not fail.
local function release_key(unique, key, place)
  if key ~= '' and stands_at(redis.pcall('HGET', unique, key), place) then redis.call('HDEL', unique, key) end
end

-- Release a key whose holder is in a mailbox and never runs. After the first write this does not fail.
local function release_late_key(unique, key, record)
  local value, time = redis.pcall('HGET', unique, key), redis.call('TIME')
  if type(value) ~= 'string' or not string.find(value, '^%d') then return end
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local window = tonumber((select(2, parse_stander(value))))
  if (window or 0) <= now and standing(value, record, nil, now) == 'late' then
    redis.call('HDEL', unique, key)
  end
end

-- Note the new place of a command that holds a key, if it does.
local function move_stander(unique, key, from, to)
  local value = redis.pcall('HGET', unique, key)
  if stands_at(value, from) then redis.call('HSET', unique, key, to .. string.match(value, '|.*$')) end
end

-- Return the fields of a delayed command's entry without its key, and the key: it has one as field `u`.
local function without_key(fields)
  for i = 1, #fields, 2 do
    if fields[i] == FIELD.UNIQUE_KEY then
      local key = table.remove(fields, i + 1)
      table.remove(fields, i)
      return fields, key
    end
  end
  return fields
end
