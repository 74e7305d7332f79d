-- enqueue_all: accept the commands that the keys and arguments of a request name, as enqueue.lua says; a
-- script that uses it has the same keys and arguments, but for the eighth key and the first three arguments.
-- Uses what enqueue.lua uses.

-- Return an admission for each, in a text, and whether anything has come of them; nil, the error and nothing
-- if the server refuses all. Return a request to name standers if there is one, and nil.
local function enqueue_all()
  local stats, flows, first_box, head = KEYS[3], KEYS[12], 14, 8
  local prefix, targets, kinds = tonumber(ARGV[5]), ARGV[7], ARGV[8]
  local call, byte, sub = redis.call, string.byte, string.sub

  -- What the arguments name: mailboxes, then marks, digests and delays, then unique keys.

  local count = #targets / 2
  local flow_of = flow_reader(sub(kinds, count + 1), flows)
  local _, marked = string.gsub(sub(kinds, 1, count), '[mb]', '')
  local _, delayed = string.gsub(sub(kinds, 1, count), '[db]', '')
  local names, room, boxes, many = {}, {}, {}, {}
  for space, same in string.gmatch(ARGV[6], '(%d+):(%d+) ') do
    for box = #names + 1, #names + same do
      names[box] = sub(KEYS[first_box + box], prefix + 1)
      room[box] = tonumber(space)
    end
  end
  local marks, digests = first_box + #names, head + count
  local delays, keyed = digests + marked, digests + marked + 2 * delayed + 1
  local is_unique = #ARGV >= keyed
  for i = 1, count do
    local high, low = byte(targets, 2 * i - 1, 2 * i)
    local box = 256 * high + low
    boxes[i], many[box] = box, is_unique and 2 or (many[box] or 0) + 1  -- two: none of them is a lone one
  end
  local lines, has_lines = {}, string.find(ARGV[6], '|', 1, true)
  for i, others in string.gmatch(has_lines and ARGV[6] or '', '(%d+)=([%d,]+) ') do
    local found, number = {}, tonumber(i)
    for box in string.gmatch(others, '%d+') do
      found[#found + 1], many[tonumber(box)] = tonumber(box), 2
    end
    lines[number], many[boxes[number]] = found, 2
  end

  local batch = {
    ready = KEYS[1], active = KEYS[2], stats = stats, due = KEYS[4], delayed = KEYS[5], later = KEYS[6],
    paused = KEYS[7], watched = KEYS[9], arrivals = KEYS[10], lone = KEYS[11], flows = flows,
    turns = KEYS[13], line = KEYS[14], first_box = first_box, names = names, room = room, suspects = #names,
    many = many, limit = ARGV[4], flow_of = flow_of, several = has_lines and open_several({}),
  }
  open_batch(batch)
  local commands, unique = {}, nil
  if is_unique then
    local named, key = keyed + 2 * count + 1, marks + marked + 1
    unique = open_unique(batch, {unique = KEYS[key]}, '', ARGV[keyed])
    batch.unique = unique
    for i = 1, count do
      commands[i] = unique.read(ARGV[head + i], ARGV[keyed + 2 * i - 1], ARGV[keyed + 2 * i])
    end
    unique.read_named(named, key + 1, (#ARGV - named + 1) / 4)
    local asks = unique.asks(commands, boxes, count)
    if asks then return asks, nil end
  end

  local admissions, refused, judge, accept = {}, batch.refused, batch.judge, batch.accept
  local first, usual, arguments = 1, kinds == '' and not is_unique and not has_lines and batch.usual, ARGV
  if usual then
    for i = 1, count do
      local box, fault = boxes[i], nil
      if room[box] then admissions[i], fault = usual(box, arguments[head + i]) end
      if fault then return nil, fault end
      if not admissions[i] then break end  -- from here on each is looked at
      first = i + 1
    end
  end
  for i = first, count do
    local box, kind, delay, id, mark, digest = boxes[i], KIND.PLAIN, 0, nil, nil, nil
    if kinds ~= '' then
      kind = sub(kinds, i, i)
      if kind == KIND.MARKED or kind == KIND.MARKED_AND_DELAYED then
        marks, digests = marks + 1, digests + 1
        mark, digest = KEYS[marks], ARGV[digests]
      end
      if kind == KIND.DELAYED or kind == KIND.MARKED_AND_DELAYED then
        delay, id = tonumber(ARGV[delays + 1]), ARGV[delays + 2]
        delays = delays + 2
      end
    end
    local admission, fault, refusal = nil, nil, nil
    if not room[box] then
      admission = ADMISSION.WRONG_TYPE
    else
      refusal = judge(box, commands[i], lines[i])
      if refusal then
        admission = mark and known(mark, digest)
      elseif mark and not call('SET', mark, MARK.ACCEPTED .. digest .. names[box], 'NX') then
        admission = known(mark, digest)
      else
        admission, fault = accept(box, i, ARGV[head + i], id, delay, commands[i], lines[i])
        if mark and (fault or admission == ADMISSION.WRONG_TYPE) then
          redis.pcall('SET', mark, '', 'PX', 1)  -- not deleted: a producer may not delete marks
        end
        if fault then return nil, fault end
      end
    end
    if not admission then
      admission = refusal
      if refusal == ADMISSION.FOLDED then
        unique.fold(commands[i])
      else
        refused[box] = true
        for _, other in ipairs(lines[i] or {}) do refused[other] = true end
      end
    end
    admissions[i] = admission
  end

  local answer = table.concat(admissions)
  if unique then answer = answer .. table.concat(unique.others) end
  return answer, batch.finish() + batch.folded > 0 or next(refused) ~= nil
end
