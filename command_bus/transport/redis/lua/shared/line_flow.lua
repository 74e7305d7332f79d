-- line_flow: what an entity waits in: a class and a tenant, by the part c of its record (see shared/line.lua). Uses record.

-- Return a function that returns what an entity waits in, by the parts of its record and its next command.
local function flow_by_record()
  local function reaches(bound, head)
    if bound == '' then return false end
    if string.byte(bound) == 60 then return not head or is_behind(string.sub(bound, 2), head) end
    return not head or bound == head or is_behind(bound, head)
  end
  return function(parts, head)
    local tenant, high, normal = string.match(parts or '', '|c=([^,|]*),([^,|]*),([^,|]*)')
    if not tenant then return '1' end
    return (reaches(high, head) and '0' or reaches(normal, head) and '1' or '2') .. tenant
  end
end
