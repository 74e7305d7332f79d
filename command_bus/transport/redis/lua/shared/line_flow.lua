-- line_flow: what an entity waits in: a class and a tenant, by the part f of its record (see
-- shared/line.lua). Uses record.

-- Return a function that returns what an entity waits in, by the parts of its record and its next command:
-- the highest class of all that wait, and the last tenant.
local function flow_by_record()
  return function(parts, head)
    local runs = string.match(parts or '', '|f=([^|]*)')
    if not runs then return '1' end
    if not string.find(runs, ',', 1, true) then return string.match(runs, '^[012][^*]*') or '1' end
    local class, tenant = '2', ''
    for flow, first in string.gmatch(runs, '([012][^*,]*)%*%d+@([^,]*)') do
      -- Those before it have left.
      if first ~= '' and head and not is_behind(first, head) then class, tenant = '2', '' end
      if string.sub(flow, 1, 1) < class then class = string.sub(flow, 1, 1) end
      if #flow > 1 then tenant = string.sub(flow, 2) end
    end
    return class .. tenant
  end
end
