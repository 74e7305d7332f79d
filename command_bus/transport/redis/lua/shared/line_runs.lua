-- line_runs: the part f of an entity's record: its commands in runs of one flow (see shared/line.lua), the
-- oldest first: flow*count@first,… Uses record.
--
-- `first` is the id of a run's first command, empty of the oldest run; the run goes on to the next one's
-- first. What is settled still counts: a run is over once the head has come to the next. Without the part all
-- are of the normal class, without a tenant. Of too many runs the oldest two become one.

local RUNS_MOST = 16
-- Of an entity without the part: how many they are does not matter, as they are the oldest.
local NORMAL_RUN = '1*1000000000@'

-- Return the runs with a command that came behind others.
local function with_run(runs, flow, id)
  local before, last = string.match(runs, '^(.*,)(.*)$')
  local same, count, first = string.match(last or runs, '^([^*]*)%*(%d+)@(.*)$')
  if same == flow then
    return (before or '') .. flow .. '*' .. string.format('%.0f', count + 1) .. '@' .. first
  end
  local one, ones, other, others, rest =
    string.match(runs, '^([012][^*]*)%*(%d+)@[^,]*,([012][^*]*)%*(%d+)@[^,]*(.*)$')
  if one and select(2, string.gsub(runs, ',', '')) + 1 >= RUNS_MOST then
    local tenant = #other > 1 and string.sub(other, 2) or string.sub(one, 2)
    runs = math.min(string.sub(one, 1, 1), string.sub(other, 1, 1)) .. tenant .. '*'
      .. string.format('%.0f', ones + others) .. '@' .. rest
  end
  return runs .. ',' .. flow .. '*1@' .. id
end

-- Return the runs without commands that were removed.
local function without_ids(runs, ids)
  local all, kept = {}, {}
  for flow, count, first in string.gmatch(runs, '([^*,]*)%*(%d+)@([^,]*)') do
    all[#all + 1] = {flow, tonumber(count), first}
  end
  for _, id in ipairs(ids) do
    local at = #all
    while at > 1 and is_behind(all[at][3], id) do at = at - 1 end
    if all[at] then all[at][2] = all[at][2] - 1 end
  end
  for _, run in ipairs(all) do
    if run[2] > 0 then
      kept[#kept + 1] = run[1] .. '*' .. string.format('%.0f', run[2]) .. '@' .. (#kept > 0 and run[3] or '')
    end
  end
  return table.concat(kept, ',')
end
