-- Do the usual steps: a command is done that leaves at most a state, a mark and a reply, and the next one was
-- read ahead, or it was a lone one. Each compares the whole record with the one that the worker expects. If
-- that is another one, or holds, events or limits are in use, nothing is done: it comes again among the other
-- steps. A worker that knows that the line is in use sends none.
--
-- The arguments are their number; names of mailboxes; their expected records; what they become: the format of
-- a record, for the fence and the time of the start, or the activation that ends with a lone command. Then,
-- if any has letters, those of each, y and s first, and what they have as in 1_steps.lua; the keys stand
-- behind those of the other steps, that of the states once. What comes of the usual steps is the first fence
-- of those that were started, and behind '|' a '+' for each that was done, or '?'.

local kept, closed, stated, usual = {active}, {active}, {}, nil

if usual_count > 0 then
  local expected, becoming, leaves = arg + usual_count, arg + 2 * usual_count, arg + 3 * usual_count
  local first, marks, left = '0', {}, leaves + usual_count
  local found = not is_special and call('HMGET', active, unpack(ARGV, arg + 1, expected)) or {}
  for i = 1, usual_count do
    local record, name, letters = found[i], ARGV[arg + i], ARGV[leaves + i] or ''
    local is_done = record == ARGV[expected + i] and records[name] == nil
    if letters ~= '' then
      if is_done and byte(letters) == YIELD then is_done = not does_another_wait() end
      if find(letters, LEFT.STATE, 1, true) then
        if #stated == 0 then
          key = key + 1
          stated[1] = type(try('HLEN', KEYS[key])) == 'number' and KEYS[key]
        end
        left = left + 1
        is_done = is_done and stated[1] and true
        if is_done and ARGV[left] ~= '' then
          stated[#stated + 1], stated[#stated + 2] = name, ARGV[left]
        elseif is_done then
          call('HDEL', stated[1], name)
        end
      end
      if find(letters, LEFT.MARK, 1, true) then
        key, left = key + 1, left + 2
        if is_done then
          call('SET', KEYS[key], keep_digest(KEYS[key], ARGV[left]), 'PX', ARGV[left - 1])
        end
      end
      if find(letters, LEFT.REPLY, 1, true) then
        key, left = key + 1, left + 1
        local inbox = KEYS[key]
        if is_done and type(try('LPUSH', inbox, ARGV[left])) == 'number' then touched[inbox] = true end
      end
    end
    if not is_done then
      marks[i] = '?'
    elseif byte(record) == LONE_HELD then
      released[#released + 1], closed[#closed + 1] = ARGV[becoming + i], name
      settled, marks[i] = settled + 1, '+'
    else
      local fence = next_fence()
      if started == 0 then first = fence end
      kept[#kept + 1], kept[#kept + 2] = name, format(ARGV[becoming + i], fence, now_text)
      settled, started, marks[i] = settled + 1, started + 1, '+'
    end
  end
  if #stated > 1 then call('HSET', unpack(stated)) end
  usual = first .. '|' .. table.concat(marks)
end
