-- delayed_mailboxes: return the mailboxes of delayed commands, without sending the commands.
--
-- KEYS[1]   delayed   hash: command id -> mailbox name, newline, entry (see shared/entry_text.lua)
-- ARGV[1]   most      bytes: the command that reaches them is the last one that is looked at
-- ARGV[2…]  ids       of the commands
--
-- returns the mailbox names of as many as were looked at, in their order; empty for one that is not there

local names, bytes = {}, 0
for i = 2, #ARGV do
  local value = redis.call('HGET', KEYS[1], ARGV[i]) or ''
  names[i - 1] = string.match(value, '^(.-)\n') or ''
  bytes = bytes + #value
  if bytes >= tonumber(ARGV[1]) then break end
end
return names
