-- newer: states of a mailbox that only a later release knows.

-- Return whether a record is of such a state; no record is of none.
local function is_newer(record)
  return record and not string.find(record, '^[rhHwsoOlquUb]|')
end
