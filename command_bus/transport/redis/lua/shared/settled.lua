-- settled: the commands that stand before the running one of a held mailbox. They are settled, and stay until the next read or trim there.

-- Return how many there are, and the id of the command that runs; 0 and an empty id if none runs.
local function settled_in(box, record)
  local state, _, _, running = parse_record(record or '')
  if (state ~= 'h' and state ~= 'H') or not string.find(running, '^%d+%-%d+$') then return 0, '' end
  return #redis.call('XRANGE', box, '-', '(' .. running), running
end

