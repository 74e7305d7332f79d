-- mailbox_heads: return how much waits in mailboxes and since when, without sending the commands.
--
-- uses: record, lone, settled
--
-- KEYS[1]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[2…]  the mailboxes
-- ARGV[1]   prefix    length of the mailbox keys' prefix: what follows it is the mailbox's name
--
-- returns for each how many of its commands are not settled, and the id of its oldest one, which is empty if
-- there is none (a key of
--         another type is length -1)

local answers = {}
local active, prefix = KEYS[1], tonumber(ARGV[1])
for i = 2, #KEYS do
  local box = KEYS[i]
  local length, head = redis.pcall('XLEN', box), ''
  local record = redis.call('HGET', active, string.sub(box, prefix + 1))
  if is_lone(record) then
    length, head = 1, lone_id(record)
  elseif type(length) ~= 'number' then
    length = -1
  elseif length > 0 then
    local settled
    settled, head = settled_in(box, record)
    length = length - settled
    if head == '' then head = redis.call('XRANGE', box, '-', '+', 'COUNT', 1)[1][1] end
  end
  answers[2 * i - 3], answers[2 * i - 2] = length, head
end
return answers
