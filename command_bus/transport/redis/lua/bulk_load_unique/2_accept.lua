-- How each command is decided.

local flow_of_command = flow_reader(ARGV[12], flows)
local publish = call('EXISTS', KEYS[9]) == 1 and publisher(KEYS[9], KEYS[10])
local queue_up = call('EXISTS', flows) == 1 and open_line(ready, active, flows, KEYS[14], KEYS[15]) or nil
local put, spoiled, finish = mailbox_writer(ready, active, lone, first_box, names, records, held, many,
  queue_up)
local stand, join, take_out, tell =
  unique_line(ready, active, unique, due, delayed, delayed_counts, first_box, names, records, put, publish,
    now, ARGV[14])

local seen, refused, others, reached = {}, {}, {}, {}
local accepted, folded, superseded, repeated = 0, 0, 0, 0

-- Return the command at an argument, as `unique_line` takes it, and how it folds.
local function command_at(at, i)
  local each = {envelope = ARGV[at + 2], id = ARGV[at + 3], key = ARGV[at + 6], flow = flow_of_command(i)}
  if each.key == '' then return each end
  local mode, delay, window, longest, name = match(ARGV[at + 7], '^(%a) (%d+) (%d+) (%d+) (.*)$')
  each.delay, each.window, each.longest, each.name =
    tonumber(delay), tonumber(window), tonumber(longest), name
  each.own = own .. '||' .. name .. '|' .. each.id
  return each, mode
end

-- Note under a command's id that it is decided. This may be the first write: then it fails at the memory
-- limit, with nothing done.
local function note(each, check, at)
  call('HSET', ids, each.id, check)
  seen[each.id] = check
  if sequenced then
    numbers[ARGV[at + 5]] = tonumber(ARGV[at + 4])
    reached[#reached + 1], reached[#reached + 2] = ARGV[at + 5], ARGV[at + 4]
  end
end

local function name_other(id) others[#others + 1] = #id .. ':' .. id end

-- Fold a command into the one that holds its key.
local function fold(each, check, at)
  local other = select(7, parse_stander(standers[each.key]))
  note(each, check, at)
  folded = folded + 1
  name_other(other)
  if own ~= '' then
    local entity = entity_of_names(names_in(each.envelope), each.id, each.name)
    keep_outcome(record, outcomes, folded_outcome(each.id, each.name, entity, other))
  end
  return ADMISSION.FOLDED
end

-- Put a command in line, for the one that it replaces if there is one; return its admission, or the error of
-- the whole chunk.
local function accept(box, each, check, at, replaced)
  local was_idle, fault, stander = not records[box], nil, nil
  if each.key == '' then
    fault = stand(box, each, 0)
  else
    fault, stander = join(box, each, replaced)
  end
  if fault then
    if not spoiled(box, fault) and accepted + folded == 0 then return nil, fault end
    room[box] = false
    return ADMISSION.TAKES_NOTHING
  end
  accepted = accepted + 1
  note(each, check, at)
  if newcomers and was_idle and records[box] then newcomers = newcomers - 1 end
  if each.key == '' then
    if publish then publish('accepted', names[box], each.envelope, '', '', '', '') end
  else
    standers[each.key] = stander
    if replaced and take_out(box, replaced) then
      local told = told_of[each.key]
      local is_own = of_dispatch(replaced) and select(4, parse_stander(replaced)) == own
      tell(box, each, replaced, is_own and {record = record, outcomes = outcomes} or told or {})
      name_other((select(7, parse_stander(replaced))))
      superseded = superseded + 1
      return ADMISSION.REPLACED
    end
  end
  room[box], free = room[box] - 1, free - 1
  return '+'
end

-- Decide a command that is not known yet.
local function decide(box, at, i, check)
  local each, mode = command_at(at, i)
  local state, in_window
  if mode then state, in_window = look_at_stander(standers[each.key], records[box], delayed, now, mode) end
  if mode and is_folded(mode, state, in_window) then return fold(each, check, at) end
  local replaces = mode == MODE.LATEST and state == 'waits'
  local need = replaces and 0 or 1  -- the place of the one that it replaces
  if room[box] < need then return ADMISSION.MAILBOX_FULL end
  if free < need then return ADMISSION.SHARD_FULL end
  if newcomers and newcomers < 1 and not records[box] then return ADMISSION.TOO_MANY_MAILBOXES end
  if mode == MODE.LATEST and may_not_replace(KEYS[first_box + box]) then return ADMISSION.MAY_NOT_REPLACE end
  return accept(box, each, check, at, replaces and standers[each.key] or nil)
end
