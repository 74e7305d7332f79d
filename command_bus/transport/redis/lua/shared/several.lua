-- several: commands that stand in the lines of several entities. Uses record, newer, lone, holds, line.
--
-- Such a command runs when it is the oldest of all its lines. The first entity is its home: there it is
-- started, shown and settled. Its entry has the field `w`: '<mailbox name>=<id> ' for each of its places. A
-- place is an entry in another line that stands there for it, with the home's name in the field `s`. They are
-- written by one script, and places stay until the command is settled or removed.
--
-- A mailbox whose head is a place has the state b, blocked, with the part `at`, the home; and so has a home
-- that was looked at while not all its places are heads, with the part `w`, its message, which it keeps until
-- the command is settled. Each place that becomes the head makes a blocked home ready; the worker that takes
-- it looks at all lines again. So nothing is counted, and a mailbox may be made ready without a reason. A
-- place is never run: whoever takes a mailbox reads nothing ahead past an entry with more than an envelope.
--
-- All lines of a command are in one shard, so in one slot: keys of mailboxes are made of their names.

-- The envelope of a place: with an option that a release without several entities does not know, so that it
-- leaves the mailbox alone. [1, '', 'place', nil, nil, '', OPTIONS, nil, nil, nil, nil, nil, {j: []}]
local PLACE_ENVELOPE = '\157\1\160\165place\192\192\196\0\206\0\1\0\0\192\192\192\192\192\129\161j\144'

-- Return a field of an entry; nil if it has none.
local function field_in(fields, name)
  for i = 3, #fields, 2 do
    if fields[i] == name then return fields[i + 1] end
  end
end

-- Return the parts of a record without those of its head's lines.
local function without_lines(parts)
  if not parts or parts == '' then return parts end
  return (string.gsub(string.gsub(parts, '|at=[^|]*', ''), '|w=[%d-]*', ''))
end

-- Return the record of a mailbox that is blocked by its head.
local function pack_blocked(message, attempt, first, parts)
  return STATE.BLOCKED .. '|||' .. message .. '|' .. attempt .. '|' .. first .. '|' .. (parts or '')
end

-- Return the record of an idle mailbox whose first entry is a place; it is not blocked while it is paused.
local function place_record(is_held, id, home, parts)
  if is_held then return pack_record(STATE.STOPPED, '', '0', '0', parts) end
  return pack_blocked(id, '0', '0', (parts or '') .. '|at=' .. home)
end

-- Return what moves the places of commands. `keys` has the names of the keys ready, active, lone and paused,
-- which is nil where nothing is paused. `read` returns the record of a mailbox, `write` writes it; false is
-- that of an idle one.
local function open_several(keys, read, write)
  local self = {field_in = field_in, without_lines = without_lines, pack_blocked = pack_blocked,
    place_record = place_record, place = PLACE_ENVELOPE}
  local ready, paused = keys.ready, keys.paused

  -- Return the key of another mailbox.
  local function key_of(box, name, other) return string.sub(box, 1, #box - #name) .. other end
  self.key_of = key_of

  read = read or function(name) return redis.call('HGET', keys.active, name) end
  write = write or function(name, record, box)
    if record then return redis.call('HSET', keys.active, name, record) end
    close(keys.active, keys.lone, box, name)
  end

  -- Make a blocked mailbox ready.
  local function wake(name, box, record)
    local _, _, _, _, attempt, first, _, parts = parse_record(record)
    write(name, queue(ready, name, attempt, first, without_lines(parts), lined and lined.head_of(box)))
  end

  -- Return whether a place is the head of its line, and that is not paused.
  local function is_there(name, id)
    local record = read(name)
    return record and string.find(record, STATE.BLOCKED .. '|||' .. id .. '|', 1, true) == 1
      and not (holds_of(paused, name))
  end

  -- Return whether a command whose entry says `text` of its places is the head of all its lines.
  function self.is_first(text)
    for name, id in string.gmatch(text, '(%S+)=(%S+) ') do
      if not is_there(name, id) then return false end
    end
    return true
  end

  -- Let a home that is blocked look again, as a place has become the head of its line, `name`.
  function self.tell_home(home, name, box)
    local record = read(home)
    if record and string.find(record, '^b|.*|w=') then wake(home, key_of(box, name, home), record) end
  end

  -- Take the places of a command out that is settled or removed; return how many.
  function self.free(text, name, box)
    local freed = 0
    for other, id in string.gmatch(text, '(%S+)=(%S+) ') do
      local key = key_of(box, name, other)
      if redis.pcall('XDEL', key, id) == 1 then freed = freed + 1 end
      local record = read(other)
      if record and lined then
        record = lined.left(record, other, {id}, key)
        write(other, record)
      end
      local is_blocked = record and string.find(record, STATE.BLOCKED .. '|||' .. id .. '|', 1, true) == 1
      if record and (is_blocked or string.find(record, '^s|')) and redis.pcall('XLEN', key) == 0 then
        write(other, false, key)
      elseif is_blocked then
        wake(other, key, record)
      end
    end
    return freed
  end

  -- Put places at the ends of the lines that a text names; return the text with their ids. Nil and the error
  -- if a line takes nothing: then none is left.
  function self.join(text, name, box, flow)
    local joined = ''
    for other in string.gmatch(text, '(%S+)=%S* ') do
      local key, record = key_of(box, name, other), read(other)
      local lined_up, fault = line_up(keys.active, key, other, record)
      local id = fault
        or redis.pcall('XADD', key, '*', FIELD.ENVELOPE, PLACE_ENVELOPE, FIELD.HOME, name)
      if type(id) == 'table' then
        self.free(joined, name, box)
        return nil, id
      end
      if not record then
        write(other, place_record(holds_of(paused, other), id, name, lined and lined.parts_of(flow)))
      elseif lined then
        write(other, lined.noted(lined_up, other, flow, id, key))
      end
      joined = joined .. other .. '=' .. id .. ' '
    end
    return joined
  end

  -- Put the places of a command that takes its place in line, and name them in the fields of its entry. Return
  -- how many there are; nil if a line takes nothing.
  function self.join_all(fields, name, box, flow)
    local count = 0
    for i = 3, #fields, 2 do
      if fields[i] == FIELD.LINES then
        local joined = self.join(fields[i + 1], name, box, flow)
        if not joined then return nil end
        fields[i + 1], count = joined, select(2, string.gsub(joined, '=', ''))
      end
    end
    return count
  end

  -- Take the places of an entry out, if it has any; return how many.
  function self.free_all(fields, name, box)
    local text = field_in(fields, FIELD.LINES)
    return text and self.free(text, name, box) or 0
  end

  -- Return whether a head may start, and the parts of its record; nil and its record if it does not.
  function self.stand(head, name, box, attempt, first, parts)
    local home, text = field_in(head[2], FIELD.HOME), field_in(head[2], FIELD.LINES)
    parts = without_lines(parts)
    if home then
      self.tell_home(home, name, box)
      return nil, pack_blocked(head[1], '0', '0', parts .. '|at=' .. home)
    elseif text then
      parts = parts .. '|w=' .. head[1]
      if not self.is_first(text) then return nil, pack_blocked(head[1], attempt, first, parts) end
    end
    return true, parts
  end

  return self
end
