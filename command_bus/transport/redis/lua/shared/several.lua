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
-- place is never run: a worker reads nothing ahead past an entry with more than an envelope.
--
-- All lines of a command are in one shard, so in one slot: keys of mailboxes are made of their names.

-- The envelope of a place: with an option that a release without several entities does not know, so that it
-- leaves the mailbox alone. [1, '-', 'place', nil, nil, '', OPTIONS, nil, nil, nil, nil, nil, {j: []}]
local PLACE_ENVELOPE = '\157\1\161-\165place\192\192\196\0\206\0\1\0\0\192\192\192\192\192\129\161j\144'

-- Return what moves the places of commands. `keys` has the names of the keys ready, active, lone and paused,
-- which is nil where nothing is paused; and perhaps `left`, a function that takes the key of each mailbox
-- that a place leaves. `read` returns the record of a mailbox, `write` writes it; false
-- is that of an idle one.
local function open_several(keys, read, write)
  local self, ready, active, paused = {place = PLACE_ENVELOPE}, keys.ready, keys.active, keys.paused
  read = read or function(name) return redis.call('HGET', active, name) end
  write = write or function(name, record, box)
    if record then return redis.call('HSET', active, name, record) end
    close(active, keys.lone, box, name)
  end

  -- Return a field of an entry; nil if it has none.
  function self.field_in(fields, name)
    for i = 3, #fields, 2 do
      if fields[i] == name then return fields[i + 1] end
    end
  end

  -- Return the key of another mailbox than `name`, whose key is `box`.
  function self.key_of(box, name, other) return string.sub(box, 1, #box - #name) .. other end

  -- Return the parts of a record without those of its head's lines.
  function self.without_lines(parts)
    if not parts or not (string.find(parts, '|w=', 1, true) or string.find(parts, '|at=', 1, true)) then
      return parts
    end
    return (string.gsub(string.gsub(parts, '|at=[^|]*', ''), '|w=[%d-]*', ''))
  end

  local function blocked(message, attempt, first, parts)
    return STATE.BLOCKED .. '|||' .. message .. '|' .. attempt .. '|' .. first .. '|' .. parts
  end

  local function is_blocked_by(record, id)
    return record and string.find(record, STATE.BLOCKED .. '|||' .. id .. '|', 1, true) == 1
  end

  -- Return the record of an idle mailbox whose first entry is a place; it is not blocked while it is paused.
  function self.of_place(is_held, id, home, parts)
    if is_held then return pack_record(STATE.STOPPED, '', '0', '0', parts) end
    return blocked(id, '0', '0', (parts or '') .. '|at=' .. home)
  end

  -- Return the record of an idle home whose first command cannot start yet.
  function self.of_home(is_held, id, _, parts)
    if is_held then return pack_record(STATE.STOPPED, '', '0', '0', parts) end
    return blocked(id, '0', '0', (parts or '') .. '|w=' .. id)
  end

  -- Make a blocked home ready.
  local function rouse(name, box, record)
    local _, _, _, _, attempt, first, _, parts = parse_record(record)
    write(name, queue(ready, name, attempt, first, parts, lined and lined.head_of(box)))
  end

  -- Let a mailbox go on whose head, a place, was taken out. What cannot start is blocked at once: that costs
  -- no activation.
  local function go_on(name, box, record)
    local head = redis.pcall('XRANGE', box, '-', '+', 'COUNT', 1)[1]
    if not head then return write(name, false, box) end
    local parts = select(8, parse_record(record))
    local may_start, stands = self.stand(head, name, box, '0', '0', parts)
    if may_start then stands = queue(ready, name, '0', '0', stands, head[1]) end
    write(name, stands)
  end

  -- Return whether a command whose entry says `text` of its places is the head of all its lines, and none is
  -- paused.
  function self.is_first(text)
    for name, id in string.gmatch(text, '(%S+)=(%S+) ') do
      if not is_blocked_by(read(name), id) or (holds_of(paused, name)) then return false end
    end
    return true
  end

  -- Return whether a head may start, and the parts of its record; nil and its record if it does not. A place
  -- lets its home look again.
  function self.stand(head, name, box, attempt, first, parts)
    local home, text = self.field_in(head[2], FIELD.HOME), self.field_in(head[2], FIELD.LINES)
    parts = self.without_lines(parts)
    if home then
      local record = read(home)
      if record and string.find(record, '^b|') and string.find(record, '|w=', 3, true) then
        rouse(home, self.key_of(box, name, home), record)
      end
      return nil, self.of_place(false, head[1], home, parts)
    elseif text then
      parts = parts .. '|w=' .. head[1]
      if not self.is_first(text) then return nil, blocked(head[1], attempt, first, parts) end
    end
    return true, parts
  end

  -- Take places out of the lines that a text names; return how many.
  local function leave(text, name, box)
    local freed = 0
    for other, id in string.gmatch(text, '(%S+)=(%S+) ') do
      local key, record = self.key_of(box, name, other), read(other)
      local is_head = is_blocked_by(record, id)
      if redis.pcall('XDEL', key, id) == 1 then freed = freed + 1 end
      if keys.left then keys.left(key) end
      if record and lined then
        record = lined.left(record, other, {id}, key)
        write(other, record)
      end
      if is_head then
        go_on(other, key, record)
      elseif record and string.find(record, '^s|') and redis.pcall('XLEN', key) == 0 then
        write(other, false, key)
      end
    end
    return freed
  end

  -- Put places at the ends of the lines that a text names; return the text with their ids. Nil if a line
  -- takes nothing: then none is left.
  function self.join(text, name, box, flow)
    local joined = ''
    for other in string.gmatch(text, '(%S+)=%S* ') do
      local key, record = self.key_of(box, name, other), read(other)
      local lined_up, fault = line_up(active, key, other, record)
      local id = fault or redis.pcall('XADD', key, '*', FIELD.ENVELOPE, PLACE_ENVELOPE, FIELD.HOME, name)
      if type(id) == 'table' then
        leave(joined, name, box)
        return nil
      end
      if not record then
        write(other, self.of_place(holds_of(paused, other), id, name, lined and lined.parts_of(flow)))
      elseif lined then
        write(other, lined.noted(lined_up, other, flow, id, key))
      end
      joined = joined .. other .. '=' .. id .. ' '
    end
    return joined
  end

  -- Put the places of a command in line, and name them in the fields of its entry. Return how many there are;
  -- nil if a line takes nothing.
  function self.join_all(fields, name, box, flow)
    for i = 3, #fields, 2 do
      if fields[i] == FIELD.LINES then
        local joined = self.join(fields[i + 1], name, box, flow)
        if not joined then return nil end
        fields[i + 1] = joined
        return select(2, string.gsub(joined, '=', ''))
      end
    end
    return 0
  end

  -- Take the places of a command out that is settled or removed, by the fields of its entry; return how many.
  function self.free_all(fields, name, box)
    local text = self.field_in(fields, FIELD.LINES)
    return text and leave(text, name, box) or 0
  end

  return self
end
