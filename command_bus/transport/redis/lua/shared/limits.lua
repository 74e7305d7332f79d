-- limits: rates and places, which a command needs to start.
--
-- A rule is a field of the hash `rules`: 'bus', 'type:<entity type>', 'entity:<entity type>' or 'name:<name>'
-- -> us per token|burst|places, each empty if it does not limit that. A scope is what shares one bucket:
-- 'bus', 'type:<entity type>', 'entity:<mailbox>', 'name:<name>:<key>'. 'keyed:<entity type>' says that a
-- class of this type names limits by a key, which only a worker can read. All shards have the same rules;
-- what follows is on the first shard, which decides about all mailboxes.
-- `limits` is a hash: b, newline, scope -> full again at us|tokens reserved|held until us
--                     w, newline, mailbox -> key|since|shard, the scope that refused it, message, what its
--                     worker reads; newline between them v, newline, scope -> what the classes of its queue
--                     have used, their virtual times, us when; | between them f, newline, scope, newline,
--                     flow -> virtual time of the flow in this queue|us when (see shared/limit_queues.lua) p,
--                     newline, mailbox -> kind|since|granted at us|shard, activation, message, costs and
--                     scopes, callers; newline between them
-- `places` is a sorted set without scores, in the order of its members:  q, newline, scope, newline, key,
-- newline, mailbox: the queue
--                                                                        s, newline, scope, newline, mailbox:
--                                                                        a place that is taken g, newline,
--                                                                        mailbox: a pass of the kind g
--
-- Tokens are deducted at a start (GCRA: a bucket is a time). A pass of the kind g is a grant: its tokens are
-- reserved and its places taken until its mailbox starts, or gives its activation up. One of the kind s has
-- the places of a mailbox that runs, for one activation. What a worker reads of a command is 'cost scope' for
-- each limit by a key or of a further entity, tabs between them, then a tab and '~paid' if it was suspended
-- (see shared/record.lua), a tab and '~flow=' with its flow if that is not the normal class without a tenant
-- (see shared/line.lua), then for each handler that waits for it a tab, '~activation mailbox'. Whose
-- caller has a place starts without one of its own. If it waits for a token there, it stands before all that
-- wait for a place: its caller keeps one until it has run. What was suspended needs no token, so it goes past
-- all that wait for one; if it waits for a place, it stands behind those whose callers have places, and
-- before all others.

local function limiter(rules_key, state_key, places_key, now, is_home)
  local call, match, find, sub, max, min =
    redis.call, string.match, string.find, string.sub, math.max, math.min
  local rules, kinds, buckets, dirty, queues, counts, moved = {}, {}, {}, {}, {}, {}, {}
  local PAID = '\t~paid'
  local limits = {buckets = buckets, dirty = dirty, queues = queues, counts = counts, moved = moved,
    PAID = PAID}
  limits.woken = {}  -- scopes whose queue is looked at again

  -- Return a number of a rule; nil if it is empty, or odd: any client may write there, and one odd rule must
  -- not stop the others.
  local function figure(text)
    local number = tonumber(text or '')
    return number and number > 0 and number < 2 ^ 53 and number or nil
  end

  function limits.rule_of(scope)
    if rules[scope] ~= nil then return rules[scope] end
    local name = match(scope, '^%a+:[^:]*') or scope
    if rules[name] == nil then
      local tick, burst, most = match(call('HGET', rules_key, name) or '', '^([^|]*)|([^|]*)|([^|]*)')
      tick, burst, most = figure(tick), figure(burst), figure(most)
      rules[name] = (tick and burst or most) and {tick = burst and tick, burst = tick and burst, most = most}
        or false
    end
    rules[scope] = rules[name]
    return rules[name]
  end

  -- Return an iterator over costs and scopes, and where the callers begin behind them, if there are any.
  function limits.costs_in(text)
    local at = find(text, '\t~', 1, true)
    return string.gmatch(at and sub(text, 1, at - 1) or text, '(%d+) ([^\t]+)'), at
  end

  -- Return the scopes of which a command's callers have places now. Nothing is believed of a caller but its
  -- name.
  function limits.lent(keyed)
    local lent = {}
    if (keyed or '') == '' then return lent end
    for activation, mailbox in string.gmatch(keyed, '\t~(%S+) ([^\t]+)') do
      local pass = limits.pass_of(mailbox)
      if pass and pass.kind == PASS.START and pass.activation == activation then
        for scope in pairs(pass.scopes) do lent[scope] = true end
      end
    end
    return lent
  end
  -- Return for each scope its name, its cost, whether a caller has a place there, and whether it was
  -- suspended; and whether this mailbox must be asked for at the first shard, by a worker that knows its
  -- command.
  function limits.scopes_of(mailbox, keyed)
    local kind = match(mailbox, '^[^:/]*')
    local known = kinds[kind] or call('HMGET', rules_key, 'entity:' .. kind, 'type:' .. kind, 'bus',
      'keyed:' .. kind)
    kinds[kind] = known
    if not known.shared then
      known.shared = {}
      if known[2] then known.shared[1] = {'type:' .. kind, 1} end
      if known[3] then known.shared[#known.shared + 1] = {'bus', 1} end
    end
    local asks = known[4] or (not is_home and (known[1] or #known.shared > 0))
    if not known[1] and (keyed or '') == '' then return known.shared, asks end
    local lent, paid = limits.lent(keyed), find(keyed or '', PAID, 1, true) and true
    local list = {known[1] and {'entity:' .. mailbox, paid and 0 or 1, nil, paid} or nil}
    for _, each in ipairs(known.shared) do
      list[#list + 1] = (paid or lent[each[1]]) and {each[1], paid and 0 or 1, lent[each[1]], paid} or each
    end
    for cost, scope in (limits.costs_in(keyed or '')) do
      if limits.rule_of(scope) then
        list[#list + 1] = {scope, paid and 0 or tonumber(cost), lent[scope], paid}
      end
    end
    return list, asks
  end
  -- Return costs and scopes of the further entities of a command, of which `text` names the lines, as a
  -- worker reads them. Its home's type is asked in any case, and each type once.
  function limits.of_others(text, mailbox)
    local costs, seen = {}, {[match(mailbox, '^[^:/]*')] = true}
    local function ask(scope)
      if limits.rule_of(scope) then costs[#costs + 1] = '1 ' .. scope end
    end
    for other in string.gmatch(text, '(%S+)=') do
      local kind = match(other, '^[^:/]*')
      ask('entity:' .. other)
      if not seen[kind] then ask('type:' .. kind) end
      seen[kind] = true
    end
    return table.concat(costs, '\t')
  end
  function limits.bucket_of(scope)
    if not buckets[scope] then
      local full, reserved, held =
        match(call('HGET', state_key, 'b\n' .. scope) or '', '^([%d.]+)|(%d+)|(%d+)$')
      buckets[scope] = {full = tonumber(full) or 0, reserved = tonumber(reserved) or 0,
        held = tonumber(held) or 0}
    end
    return buckets[scope]
  end
  -- Return the free tokens. A bucket is never emptier than empty: the clock may have gone back, or the rule
  -- been changed.
  function limits.tokens_of(rule, bucket)
    local emptiest = now + rule.burst * rule.tick
    if bucket.full > emptiest then bucket.full, bucket.cut = emptiest, true end
    return rule.burst - max(bucket.full - now, 0) / rule.tick - bucket.reserved
  end

  function limits.reserve(scope, cost)
    local bucket = limits.bucket_of(scope)
    bucket.reserved, dirty[scope] = max(bucket.reserved + cost, 0), true
  end

  function limits.length_of(kind, scope)
    return call('ZLEXCOUNT', places_key, '[' .. kind .. scope .. '\n', '(' .. kind .. scope .. '\11')
  end
  function limits.taken(scope)
    if not counts[scope] then
      if next(moved) then limits.write_places() end
      counts[scope] = limits.length_of('s\n', scope)
    end
    return counts[scope]
  end
  function limits.is_queued(scope)
    if queues[scope] == nil then
      local first = call('ZRANGEBYLEX', places_key, '[q\n' .. scope .. '\n', '(q\n' .. scope .. '\11',
        'LIMIT', 0, 1)
      queues[scope] = first[1] or false
    end
    return queues[scope]
  end
  -- Return whether a scope lets a command start. Who has a place there passes its queue, unless it needs a
  -- token as well; whose caller has one passes it in any case, and what was suspended all but its like.
  function limits.is_free(scope, cost, has_place, is_first, is_lent, is_paid)
    local rule, bucket = limits.rule_of(scope), limits.bucket_of(scope)
    if bucket.held > now then return false end
    if is_paid then
      local is_next = is_first or not limits.is_paid_queued(scope)
      return not rule.most or has_place or is_lent or (is_next and limits.taken(scope) < rule.most)
    end
    if not is_first and not is_lent and (rule.tick or not has_place) and limits.is_queued(scope) then
      return false
    end
    if rule.tick and limits.tokens_of(rule, bucket) + 0.000001 < min(cost, rule.burst) then return false end
    return has_place or is_lent or not rule.most or limits.taken(scope) < rule.most
  end

  -- Return the first scope that refuses a mailbox, nil if none does, and all its scopes. `first_in` is the
  -- scope in whose queue it is first.
  function limits.refusing(mailbox, activation, message, keyed, first_in)
    return limits.refusing_of(limits.scopes_of(mailbox, keyed), mailbox, activation, message, first_in)
  end
  function limits.refusing_of(list, mailbox, activation, message, first_in)
    local pass = limits.pass_of(mailbox)
    local granted = pass and pass.kind == PASS.GRANT and (pass.message == '' or pass.message == message)
    local holds = pass and pass.kind == PASS.START and pass.activation == activation
    for _, each in ipairs(list) do
      local has = pass and pass.scopes[each[1]]
      local passes = granted and has and limits.still_holds(each[1], each[2], mailbox, each[3])
      if not passes
          and not limits.is_free(each[1], each[2], holds and has, first_in == each[1], each[3], each[4]) then
        return each[1], list
      end
    end
    return nil, list
  end

  return limits
end
