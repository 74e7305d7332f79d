-- unique_line: put commands with unique keys in line, and take out those that they replace. Uses record,
-- outcomes, delayed, postpone, unique, events, unstarted.

-- Return the state of the command that holds a key (`gone` if it left), and whether its window is open. One
-- that was put off for as long as it may be keeps its place: it counts as started. One that is late holds
-- nothing, but the latest takes it out of line.
local function look_at_stander(value, record, delayed, now, mode)
  local state = standing(value, record, delayed, now)
  if state == 'late' then state = mode == MODE.LATEST and 'waits' or nil end
  local place, window, most = parse_stander(value)
  if state == 'waits' and place ~= PLACE.DELAYED and tonumber(most) and tonumber(most) <= now then state = 'started' end
  return state or 'gone', tonumber(window) and tonumber(window) > now
end

-- Return whether a command is folded into the one that holds its key.
local function is_folded(mode, state, in_window)
  return mode ~= MODE.LATEST and (in_window or state == 'waits'
    or (mode == MODE.FIRST_UNTIL_SETTLED and state == 'started'))
end

-- Return whether this user may not take commands out of a mailbox. No entry has the id 0-0.
local function may_not_replace(mailbox)
  local answer = redis.pcall('XDEL', mailbox, '0-0')
  return type(answer) == 'table' and not string.find(answer.err, 'WRONGTYPE', 1, true)
end

-- Return the functions `stand`, `join`, `take_out` and `tell`. Mailboxes go by their number in `names`; `put`
-- is that of `mailbox_writer`; `publish` is nil if nothing is watched. A command is a table: its envelope,
-- id, key, wire name, own part of a stander (from the flags on), ms of delay, window and longest wait (0 if
-- there is none), and its flow.
local function unique_line(ready, active, unique, due, delayed, delayed_counts, first_box, names, records, put, publish, now, reply_ttl)
  local call, try, format = redis.call, redis.pcall, string.format

  -- Give a command its place, or keep it until then. Return the error if its mailbox takes nothing, its place
  -- (d while it is kept), and until when it is kept.
  local function stand(box, each, delay)
    local at = waits_until(due, delayed, delayed_counts, names[box], each.id, delay)
    if not at then return put(box, each.envelope, each.flow) end
    local entry = each.envelope
    if each.key ~= '' then
      entry = '\193e:' .. #entry .. ':' .. entry .. 'u:' .. #each.key .. ':' .. each.key
    end
    local mailbox = KEYS[first_box + box]
    return postpone(ready, due, delayed, delayed_counts, mailbox, names[box], each.id, at, with_flow(entry, each.flow)), PLACE.DELAYED, at
  end

  -- Put a command in line, for `replaced`, the stander whose place it takes, or nil. Return the error if its
  -- mailbox takes nothing; else nil and the stander that it is.
  local function join(box, each, replaced)
    local most, delay = each.longest > 0 and now + each.longest, each.delay
    if most and replaced then most = tonumber((select(3, parse_stander(replaced)))) or most end
    if most then delay = math.max(0, math.min(moment_of(delay), most) - now) end
    local fault, place, at = stand(box, each, delay)
    if fault then return fault end
    local until_ms = each.window > 0 and format('%.0f', now + each.window) or ''
    local value = place .. '|' .. until_ms .. '|' .. (most and format('%.0f', most) or '') .. '|' .. each.own
    try('HSET', unique, each.key, value)
    if publish then
      publish('accepted', names[box], each.envelope, '', '', '',
        at and at > now and format('%.0f', at - now) or '')
    end
    return nil, value
  end

  -- Take the one that a command replaces out of line; return whether it was there.
  local function take_out(box, stander)
    local place, _, _, _, _, _, id = parse_stander(stander)
    if place == PLACE.DELAYED then
      return take_delayed(due, delayed, delayed_counts, names[box], id)
    end
    if call('XDEL', KEYS[first_box + box], place) == 0 then return false end
    if lined and records[box] then
      records[box] = lined.left(records[box], names[box], {place}, KEYS[first_box + box])
      call('HSET', active, names[box], records[box])
    end
    if records[box] and string.find(records[box], '^[hH]|') then
      records[box] = changed_behind(records[box])
      call('HSET', active, names[box], records[box])
    end
    return true
  end

  -- Tell who is concerned that `each` has replaced a stander: its caller, later callers who ask by its id,
  -- the dispatch or the history that keeps its outcome, and who watches. `told` has the keys of its mark, its
  -- inbox, and record and outcomes of that, nil for none; its reply; and the ms for which its mark is kept.
  local function tell(box, each, stander, told)
    local place, _, _, flags, waits, name, id = parse_stander(stander)
    local value = told.mark and try('GET', told.mark)
    if type(value) == 'string' and string.sub(value, 1, 1) == MARK.ACCEPTED
      and string.sub(value, 10) == names[box] then
      call('SET', told.mark, MARK.SETTLED .. string.sub(value, 2, 9) .. told.reply, 'PX', told.keep)
    end
    if waits ~= '' and told.inbox and type(try('LPUSH', told.inbox, told.reply)) == 'number' then try('PEXPIRE', told.inbox, reply_ttl) end
    if not publish and not told.outcomes then return end
    local entity = entity_of_names(names_in(each.envelope), each.id, each.name)
    if told.outcomes then
      local bounds = string.match(flags, '^g?t?%d*(h.*)$')
      local before = bounds and bounds .. ':' .. #id .. ':' .. id or ''
      keep_outcome(told.record, told.outcomes, before .. superseded_outcome(id, name, entity, place, each.id))
    end
    if publish then publish('superseded', names[box], packed_head(id, name, entity), '', '', '', '') end
  end
  return stand, join, take_out, tell
end

