-- Do the usual steps: a command is done that leaves nothing, and the next one was read ahead, or it was a
-- lone one. Each compares the whole record with the one that the worker expects. Where that is another one,
-- or holds, events or limits are in use, nothing is done: it comes again among the other steps.
-- A worker that knows that the line is in use sends none.
--
-- The arguments are names of mailboxes; then their expected records; then what they become: the format of a
-- record, for the fence and the time of the start, or the activation that ends with a lone command. What
-- comes of them is the first fence of those that were started, and behind '|' a '+' for each that was done,
-- or '?'.

local kept, closed, usual = {active}, {active}, nil
local usual_count = (#ARGV - arg) / 3

if usual_count > 0 then
  local expected, becoming, first, marks = arg + usual_count, arg + 2 * usual_count, '0', {}
  local found = not is_special and call('HMGET', active, unpack(ARGV, arg + 1, expected)) or {}
  for i = 1, usual_count do
    local record, name = found[i], ARGV[arg + i]
    if record ~= ARGV[expected + i] or records[name] ~= nil then
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
  usual = first .. '|' .. table.concat(marks)
end
