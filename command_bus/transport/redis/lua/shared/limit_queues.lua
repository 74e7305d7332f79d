
-- limit_queues: who waits for a limit, and who is granted its start. Uses limit_turns.
--
-- A queue is in the order of its keys: a rank, and a number in it. Ranks are 0 for whose caller has a place,
-- 1 for what was suspended, and 2 to 4 for the classes high, normal and low: a mailbox has that of its entity
-- in the line (see shared/line.lua), and of classes that wait the one comes next that has used least for its
-- weight. The number is the us of the first refusal. Where classes or shares are in use, it is a virtual time
-- instead, for each class of a queue: that of who was served last, or that of the flow if it was served
-- beyond it.

-- Add to `limits` what changes its queues. `flows` is the key of the line's hash of flows, which has the
-- weights of tenants; it may be nil.
local function add_queues(limits, state_key, places_key, now, flows)
  local TURN, LENT, PAID_RANK = 10000, 48, 49
  -- Return what a key comes before: 10 for whose caller has a place, 4 for what was suspended, 1 for all
  -- others.
  function limits.precedence_of(key)
    local rank = string.byte(key)
    return rank == LENT and 10 or rank == PAID_RANK and 4 or 1
  end
  -- Return the number of a flow's next mailbox in a queue, and keep it: the flow has been served so far.
  local function next_number(scope, flow, kept)
    local turns = turns_in(kept) or {used = {0, 0, 0}, virtual = {now, now, now}}
    if not kept then redis.call('HSET', state_key, 'v\n' .. scope, text_of_turns(turns, now)) end
    local field, tenant = 'f\n' .. scope .. '\n' .. flow, string.sub(flow, 2)
    local weight = flows and tenant ~= '' and tonumber(redis.call('HGET', flows, 'w:' .. tenant) or '') or 1
    local served = tonumber(string.match(redis.call('HGET', state_key, field) or '', '^(%d+)') or 0)
    local number = math.max(turns.virtual[string.byte(flow) - 47], served)
    redis.call('HSET', state_key, field, string.format('%.0f|%.0f', number + math.max(1, TURN / weight), now))
    return string.format('%016.0f', number)
  end
  -- Reserve tokens and take places for a start of a mailbox's next command, or of this message.
  function limits.grant(mailbox, message, list, since, shard, keyed)
    local scopes = {}
    for _, each in ipairs(list) do
      local rule = limits.rule_of(each[1])
      scopes[each[1]] = rule.tick and math.min(each[2], rule.burst) or 0
      if rule.tick then limits.reserve(each[1], scopes[each[1]]) end
      if rule.most and not each[3] then
        limits.move_place('ZADD', each[1], mailbox, not limits.pass_of(mailbox))
      end
    end
    redis.call('ZADD', places_key, 0, 'g\n' .. mailbox)
    limits.keep_pass(mailbox, PASS.GRANT, '', message, since, shard, scopes, string.match(keyed, '\t~.*$'))
  end
  -- Return whether a grant lets its mailbox start: the rule may be another one since.
  function limits.still_holds(scope, cost, mailbox, is_lent)
    local rule, bucket = limits.rule_of(scope), limits.bucket_of(scope)
    if rule.tick
        and limits.tokens_of(rule, bucket) + bucket.reserved + 0.000001 < math.min(cost, rule.burst) then
      return false
    end
    if next(limits.moved) then limits.write_places() end
    return is_lent or not rule.most or redis.call('ZSCORE', places_key, 's\n' .. scope .. '\n' .. mailbox)
  end
  local function waiting_in(text)
    return string.match(text or '', '^(%d+)|(%d+)|(%d+)\n([^\n]*)\n([^\n]*)\n(.*)$')
  end
  -- Return what is written of a mailbox that waits: its key, since when in us, its shard, the scope that
  -- refused it, the message, what its worker read.
  function limits.waiting(mailbox) return waiting_in(redis.call('HGET', state_key, 'w\n' .. mailbox)) end
  -- Return whether the first in a queue needs no place, because its caller has one.
  function limits.is_first_lent(scope)
    local first = limits.is_queued(scope)
    return first and limits.precedence_of(string.sub(first, #scope + 4)) == 10
  end
  -- Return whether one that was suspended waits for a place: the first, or the first behind those whose
  -- callers have one.
  function limits.is_paid_queued(scope)
    local first = limits.is_queued(scope)
    local precedence = first and limits.precedence_of(string.sub(first, #scope + 4)) or 1
    if precedence ~= 10 then return precedence == 4 end
    local from = 'q\n' .. scope .. '\n'
    return #redis.call('ZRANGEBYLEX', places_key, '[' .. from .. '1', '(' .. from .. '2', 'LIMIT', 0, 1) > 0
  end
  function limits.leave_queue(mailbox, scope, key)
    redis.call('ZREM', places_key, 'q\n' .. scope .. '\n' .. key .. '\n' .. mailbox)
    redis.call('HDEL', state_key, 'w\n' .. mailbox)
    limits.queues[scope] = nil
  end

  -- Put a mailbox into the queue of the scope that refuses it. It keeps the time of its first refusal, and
  -- its place if nothing is new.
  function limits.wait(mailbox, scope, message, keyed, shard)
    local kept = redis.call('HMGET', state_key, 'w\n' .. mailbox, 'v\n' .. scope)
    local key, since, _, before = waiting_in(kept[1])
    if before then limits.leave_queue(mailbox, before, key) end
    local pass = limits.pass_of(mailbox)
    since = since or (pass and pass.since ~= '0' and pass.since) or string.format('%.0f', now)
    local is_lent = limits.lent(keyed)[scope]
    local is_paid = string.find(keyed or '', limits.PAID, 1, true)
    local flow = string.match(keyed or '', '\t~flow=([012][^\t]*)') or kept[2] and '1'
    local rank = is_lent and '0' or is_paid and '1' or flow and string.char(string.byte(flow) + 2) or '3'
    if before ~= scope or string.sub(key, 1, 1) ~= rank then
      key = rank .. (rank > '1' and flow and next_number(scope, flow, kept[2])
        or string.format('%016.0f', since))
    end
    limits.drop(mailbox)
    local member, is_new = 'q\n' .. scope .. '\n' .. key .. '\n' .. mailbox, not limits.is_queued(scope)
    if is_new or is_lent or is_paid then limits.woken[scope] = true end
    redis.call('ZADD', places_key, 0, member)
    redis.call(
      'HSET', state_key, 'w\n' .. mailbox,
        key .. '|' .. since .. '|' .. shard .. '\n' .. scope .. '\n' .. message .. '\n' .. (keyed or '')
    )
    if is_new or member < limits.queues[scope] then limits.queues[scope] = member end
  end
end
