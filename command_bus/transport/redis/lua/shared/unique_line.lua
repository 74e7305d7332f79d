-- unique_line: fold commands with unique keys into those that hold these, or let them take their places. Uses
-- record, lone, outcomes, delayed, postpone, unique, events, unstarted.

-- Return the state of the command that holds a key (`gone` if it left), and whether its window is open. One
-- that was put off for as long as it may be keeps its place, and so does one of several entities, which
-- others await: they count as started. One that is late holds nothing, but the latest takes it out of line.
local function look_at_stander(value, record, delayed, mode)
  local now = now_ms()
  local state = standing(value, record, delayed, now)
  if state == 'late' then state = mode == MODE.LATEST and 'waits' or nil end
  local place, window, most, flags = parse_stander(value)
  local is_put_off = window == '' and tonumber(most)  -- of one with a window it bounds that
  local stays = place ~= PLACE.DELAYED and is_put_off and is_put_off <= now
    or mode == MODE.LATEST and string.find(flags or '', '^w')
  if state == 'waits' and stays then state = 'started' end
  return state or 'gone', tonumber(window) and tonumber(window) > now
end

-- Return what `open_batch` asks about unique keys. `box` is the number of a mailbox.
--
-- keys    has the names of the keys unique and, of a dispatch in bulk, record and outcomes
-- own     how a stander says that this dispatch keeps its outcome; empty if none does
-- reply_ttl  ms of a reply in an inbox
--
-- A command is a table: its key and envelope; mode, ms of delay, window and longest wait (0 if there is
-- none); what it stores from the flags on, `names`; its wire name and id; once it was judged, `replaced`: the
-- stander whose place it takes.
local function open_unique(batch, keys, own, reply_ttl)
  local call, try, format, match = redis.call, redis.pcall, string.format, string.match
  local unique, standers, told_of, self = keys.unique, {}, {}, {others = {}}
  local names, records, first_box = batch.names, batch.records, batch.first_box

  -- Read a command with a key: how it folds is `mode delay window longest names`, with a plus before a window
  -- that it begins again where it is folded.
  function self.read(envelope, key, fold)
    local command, delay, window, longest, stored = {envelope = envelope, key = key}, nil, nil, nil, nil
    command.mode, delay, window, longest, stored = match(fold, '^(%a) (%-?%d+) (%+?%d+) (%d+) (.*)$')
    command.extends = string.byte(window) == 43
    command.delay, command.window, command.longest = tonumber(delay), tonumber(window), tonumber(longest)
    command.names = own .. stored
    command.name, command.id = match(stored, '^[^|]*|[^|]*|([^|]*)|(.*)$')
    if not standers[key] then standers[key] = call('HGET', unique, key) or '' end
    if command.longest > 0 then command.most = now_ms() + command.longest end
    return command
  end

  -- Read who is to be told of standers that are named: of each its key, the stander, its reply, and ms for
  -- which its mark is kept, from one argument on; and its mark, its caller's inbox, and its dispatch's record
  -- and outcomes, from one key on.
  function self.read_named(at, key, many)
    for _ = 1, many do
      local told = {stander = ARGV[at + 1], reply = ARGV[at + 2], keep = ARGV[at + 3], inbox = KEYS[key + 1]}
      if told.keep ~= '0' then told.mark = KEYS[key] end
      if keeps_end(told.stander) then told.record, told.outcomes = KEYS[key + 2], KEYS[key + 3] end
      told_of[ARGV[at]] = told
      at, key = at + 4, key + 4
    end
  end

  -- Return whether this user may not take commands out of a mailbox. No entry has the id 0-0.
  function self.may_not_replace(box)
    local answer = try('XDEL', KEYS[first_box + box], '0-0')
    return type(answer) == 'table' and not string.find(answer.err, 'WRONGTYPE', 1, true)
  end

  -- Return whether who is concerned by a stander's end is not known.
  local function is_stranger(key, stander)
    local _, _, _, flags, waits = parse_stander(stander)
    if not flags or (waits == '' and (flags == '' or flags == own)) then return false end
    return not told_of[key] or told_of[key].stander ~= stander
  end

  -- Return the request to name standers, if some of these commands would replace strangers: for each its key
  -- and the stander.
  function self.asks(commands, boxes, count)
    local asks, asked = {'~'}, {}
    for i = 1, count do
      local command = commands[i]
      local key, mode = command and command.key, command and command.mode
      if mode == MODE.LATEST and not asked[key] and is_stranger(key, standers[key])
        and look_at_stander(standers[key], records[boxes[i]], batch.delayed, mode) == 'waits' then
        asked[key], asks[#asks + 1] = true, #key .. ':' .. key .. #standers[key] .. ':' .. standers[key]
      end
    end
    if #asks > 1 and not self.may_not_replace(1) then return table.concat(asks) end
  end

  -- Return whether a command is folded into the one that holds its key; note which one it replaces.
  function self.folds(box, command)
    local mode, stander = command.mode, standers[command.key]
    local state, in_window = look_at_stander(stander, records[box], batch.delayed, mode)
    if mode ~= MODE.LATEST then
      return in_window or state == 'waits' or (mode == MODE.FIRST_UNTIL_SETTLED and state == 'started')
    end
    command.replaced = state == 'waits' and stander or nil
    if command.replaced and command.most then
      local _, window, most = parse_stander(stander)
      command.most = window == '' and tonumber(most) or command.most
    end
  end

  -- Return ms until a command takes its place.
  function self.delay_of(command)
    if not command.most or command.mode ~= MODE.LATEST then return command.delay end
    return math.max(0, math.min(moment_of(command.delay), command.most) - now_ms())
  end

  -- Name the stander of a command in the answer; return its id.
  local function name_other(stander)
    local id = select(7, parse_stander(stander))
    self.others[#self.others + 1] = #id .. ':' .. id
    return id
  end

  -- Begin the window of a command again into which another one is folded; its `most` bounds that.
  local function extend(command)
    local place, window, most, rest = match(standers[command.key], '^([^|]*)|(%d*)|(%d*)(|.*)$')
    local until_ms = math.min(now_ms() + command.window, tonumber(most) or math.huge)
    if not place or until_ms <= (tonumber(window) or 0) then return end
    standers[command.key] = place .. '|' .. format('%.0f', until_ms) .. '|' .. most .. rest
    try('HSET', unique, command.key, standers[command.key])
  end

  -- Fold a command; a dispatch that keeps outcomes keeps this.
  function self.fold(command)
    local other = name_other(standers[command.key])
    if command.extends then extend(command) end
    batch.folded = batch.folded + 1
    if own == '' then return end
    local entity = entity_of_names(names_in(command.envelope), command.id, command.name)
    keep_outcome(keys.record, keys.outcomes, folded_outcome(command.id, command.name, entity, other))
  end

  -- Let a command hold its key. It has a place, and is kept until a moment or nil.
  function self.hold(command, place, at)
    local window = command.window > 0 and format('%.0f', now_ms() + command.window) or ''
    local most = command.most and format('%.0f', command.most) or ''
    local value = place .. '|' .. window .. '|' .. most .. '|' .. command.names
    standers[command.key] = value
    try('HSET', unique, command.key, value)
  end

  -- Take the one that a command replaces out of line; return whether it was there.
  local function take_out(box, stander)
    local place, _, _, _, _, _, id = parse_stander(stander)
    if place == PLACE.DELAYED then
      return take_delayed(batch.due, batch.delayed, batch.later, names[box], id)
    end
    if call('XDEL', KEYS[first_box + box], place) == 0 then return false end
    local before = records[box]
    if before and lined then
      records[box] = lined.left(before, names[box], {place}, KEYS[first_box + box])
    end
    if before and string.find(records[box], '^[hH]|') then records[box] = changed_behind(records[box]) end
    if records[box] ~= before then call('HSET', batch.active, names[box], records[box]) end
    return true
  end

  -- Tell who is concerned that a stander was replaced: its caller, later callers who ask by its id, the
  -- dispatch or the history that keeps its outcome, and who watches.
  local function tell(box, command, told)
    local place, _, _, flags, waits, name, id = parse_stander(command.replaced)
    local value = told.mark and try('GET', told.mark)
    if type(value) == 'string' and string.sub(value, 1, 1) == MARK.ACCEPTED
      and string.sub(value, 10) == names[box] then
      call('SET', told.mark, MARK.SETTLED .. string.sub(value, 2, 9) .. told.reply, 'PX', told.keep)
    end
    if waits ~= '' and told.inbox and type(try('LPUSH', told.inbox, told.reply)) == 'number' then
      try('PEXPIRE', told.inbox, reply_ttl)
    end
    if not batch.publish and not told.outcomes then return end
    local entity = entity_of_names(names_in(command.envelope), command.id, command.name)
    if told.outcomes then
      local bounds = match(flags, '^w?g?t?%d*(h.*)$')
      local before = bounds and bounds .. ':' .. #id .. ':' .. id or ''
      keep_outcome(told.record, told.outcomes,
        before .. superseded_outcome(id, name, entity, place, command.id))
    end
    if batch.publish then
      batch.publish('superseded', names[box], packed_head(id, name, entity), '', '', '', '')
    end
  end

  -- Take the one that a command replaces out of line, and tell who is concerned; return whether it was there.
  function self.replace(box, command)
    local stander, told = command.replaced, told_of[command.key]
    if not take_out(box, stander) then return false end
    if own ~= '' and select(4, parse_stander(stander)) == own then
      told = keys
    elseif told and told.stander ~= stander then
      told = nil
    end
    tell(box, command, told or {})
    name_other(stander)
    return true
  end

  self.finish = expire_outcomes
  return self
end
